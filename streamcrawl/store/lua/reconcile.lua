#!lua flags=allow-oom
-- reconcile.lua: recompute what hosts count from the structures themselves, at start and after a failover.
--
-- KEYS[1] state   hash     the shard's state
-- ARGV[1] epoch   str      the epoch the caller joined with
-- ARGV[2] hosts   msgpack  host keys, at most 100
-- ARGV[3] walked  str      entry id up to which the caller has walked `stream:fetch`; '0-0' when it has not
-- ARGV[4] seen    msgpack  for each of the hosts the ids that it saw up to there: 2,000 in all, or one host
--
-- Returns {'OK', mended}  hosts whose queued or in_flight was wrong (by domain also what the domain says of it), or that
--                         were wrongly in or out of the schedule (or of their domain's turns, or their domain was) or of
--                         the lists of blocked, given-up and demoted hosts
--         {'BEHIND'}      more than 1,000 entries came after `walked`: walk on, and ask again; nothing was written
--         {'GONE'}
-- Derives `host:<host>`, `domain:<domain>`, `turns:<domain>`, `probes:<domain>`, `queue:<host>:<level>`, `schedule`, `blocked`,
-- `given_up`, `giving_up`, `demoted`, `stream:fetch`.
-- Repeat: harmless, mended is 0.
--
-- A host given up for its page budget gets its chance again when the budget was raised.
-- include _state
-- include _hosts
-- include _recount
local keys = cmsgpack.unpack(ARGV[2])
local in_stream = entries_of(keys, ARGV[3], cmsgpack.unpack(ARGV[4]))
if not in_stream then return {'BEHIND'} end

-- Is the host wrongly in or out of a list? Mended at once.
local function is_misplaced(name, key, should)
  if (call('ZSCORE', P .. name, key) ~= false) == should then return false end
  if should then call('ZADD', P .. name, wall, key) else call('ZREM', P .. name, key) end
  return true
end
local mended = 0
for i = 1, #keys do
  local key, h, queued = keys[i], host(keys[i]), 0
  h.levels = ''
  for level = 0, 3 do
    local length = call('LLEN', queue_key(key, level))
    if length > 0 and level ~= 2 then h.levels = h.levels .. level end
    queued = queued + length
  end
  local flying = in_stream[key] or 0
  local p, field = pace_of(h), 'in_flight:' .. key
  local is_wrong = h.queued ~= queued or h.in_flight ~= flying
  h.queued, h.in_flight = queued, flying
  if BY_DOMAIN then
    is_wrong = is_wrong or (p[field] or 0) ~= flying
    p.in_flight, p[field] = p.in_flight - (p[field] or 0) + flying, flying
    misplaced[h.domain] = true
  end
  if h.given_up == 'host_budget' and (not PAGES_MOST or h.pages < PAGES_MOST) then
    h.given_up = ''
    call('ZREM', P .. 'giving_up', key)
  elseif not is_wrong then
    is_wrong = is_ready(key, h) ~= (call('ZSCORE', P .. place_of(h), key) ~= false)
      or BY_DOMAIN and (place_in_schedule(h.domain, p) ~= nil) ~= (call('ZSCORE', P .. 'schedule', h.domain) ~= false)
  end
  is_wrong = is_misplaced('blocked', key, h.blocked ~= '') or is_wrong
  is_wrong = is_misplaced('given_up', key, is_lost(h)) or is_wrong
  is_wrong = is_misplaced('demoted', key, h.demoted > 0) or is_wrong
  if is_wrong then mended = mended + 1 end
end
settle()
return {'OK', mended}

#!lua flags=allow-oom
-- beat.lua: renew the leases of live workers and say how many slots there are.
--
-- KEYS[1] state    hash     the crawl's state
-- ARGV[1] epoch    str      the epoch the caller joined with
-- ARGV[2] lease_ms int      a worker not heard of for three leases no longer counts
-- ARGV[3..] worker msgpack  one each: {consumer, stream, slots, info JSON, {entry id, …}}; slots -1: it has left; 0 for a
--                           worker of a stage, whose `stage` and `slots` stand in its info
--
-- Returns {'OK', {{lost id, …}, …}, slots}  per worker the entries that are no longer its own; live fetch slots
--         {'GONE'}
-- Derives the streams, `workers`, `totals`. Cost O(entries + workers). Repeat: harmless.
--
-- XCLAIM without FORCE renews only what is pending, and an entry is never handed to another in place, so a late beat
-- cannot steal anything back. JUSTID, because a plain XCLAIM would send every payload back.
-- include _state
-- include _items
local lease, answers = tonumber(ARGV[2]), {}
for n = 3, #ARGV do
  local w = cmsgpack.unpack(ARGV[n])
  local consumer, stream, slots, info, ids = w[1], P .. w[2], w[3], w[4], w[5]
  local lost = {}
  for i = 1, #ids, 1000 do
    local query = {'XCLAIM', stream, 'workers', consumer, 0}
    for j = i, math.min(i + 999, #ids) do query[#query + 1] = ids[j] end
    query[#query + 1] = 'JUSTID'
    local renewed = redis.pcall(unpack(query))
    local is_held = {}
    if not renewed.err then for j = 1, #renewed do is_held[renewed[j]] = true end end
    for j = i, math.min(i + 999, #ids) do
      if not is_held[ids[j]] then lost[#lost + 1] = ids[j] end
    end
  end
  answers[#answers + 1] = lost
  if slots < 0 then call('HDEL', P .. 'workers', consumer)
  else call('HSET', P .. 'workers', consumer, wall .. ' ' .. slots .. ' ' .. info) end
end
local total, slots_of, rows = 0, {}, call('HGETALL', P .. 'workers')
for i = 1, #rows, 2 do
  local beat, slots = string.match(rows[i + 1], '^(%d+) (%d+) ')
  -- The stamp is wall time: after a clock that jumped all look dead, and would be without slots until their next beat.
  if beat and (math.abs(wall - tonumber(beat)) < 3 * lease or is_after_gap(lease)) then
    total = total + tonumber(slots)
    local is_read, about = pcall(cjson.decode, string.match(rows[i + 1], '{.*"stage":.*') or '')
    if is_read and STAGES[about.stage] then
      slots_of[about.stage] = (slots_of[about.stage] or 0) + (tonumber(about.slots) or 0)
    end
  else call('HDEL', P .. 'workers', rows[i]) end
end
call('HSET', KEYS[1], 'slots', total)
-- Of each stage too: the mark of its stream goes by them.
for stage in pairs(STAGES) do
  local n = slots_of[stage] or 0
  if n > 0 then call('HSET', KEYS[1], 'slots:' .. stage, n) else call('HDEL', KEYS[1], 'slots:' .. stage) end
end
watch_throttled()
-- What was counted at times 10 s apart, newest first, for the rates of `status`: crawl time, wall, done, created.
local samples = call('HGET', KEYS[1], 'samples') or ''
local last = tonumber(string.match(samples, '^%d+'))
if not last or now - last >= 10000 then
  local t = call('HMGET', P .. 'totals', 'page.done', 'page.created')
  local kept = {now .. ' ' .. wall .. ' ' .. (t[1] or 0) .. ' ' .. (t[2] or 0)}
  for sample in string.gmatch(samples, '[^|]+') do
    if #kept < 7 then kept[#kept + 1] = sample end
  end
  call('HSET', KEYS[1], 'samples', table.concat(kept, '|'))
end
return {'OK', answers, total}

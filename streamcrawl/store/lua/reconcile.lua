#!lua flags=allow-oom
-- reconcile.lua: recompute what hosts count from the structures themselves, at start and after a failover.
--
-- KEYS[1] state  hash     the crawl's state
-- ARGV[1] epoch  str      the epoch the caller joined with
-- ARGV[2] hosts  msgpack  host keys, at most 200
--
-- Returns {'OK', mended}  hosts whose queued or in_flight was wrong, or that were wrongly in or out of the schedule
--         {'GONE'}
-- Derives `host:<host>`, `queue:<host>:<level>`, `schedule`, `stream:fetch`. Repeat: harmless, mended is 0.
--
-- A host given up for its page budget gets its chance again when the budget was raised.
-- include _state
-- include _hosts
local in_stream = {}
for _, entry in ipairs(call('XRANGE', STREAM, '-', '+', 'COUNT', 20000)) do
  local key = entry[2][2]
  in_stream[key] = (in_stream[key] or 0) + 1
end
local mended = 0
for _, key in ipairs(cmsgpack.unpack(ARGV[2])) do
  local h = host(key)
  local queued = 0
  for level = 0, 3 do queued = queued + call('LLEN', queue_key(key, level)) end
  local flying = in_stream[key] or 0
  local is_wrong = h.queued ~= queued or h.in_flight ~= flying
  h.queued, h.in_flight = queued, flying
  if h.given_up == 'host_budget' and (not PAGES_MOST or h.pages < PAGES_MOST) then
    h.given_up = ''
    call('ZREM', P .. 'giving_up', key)
  elseif not is_wrong then
    is_wrong = is_ready(key, h) ~= (call('ZSCORE', P .. 'schedule', key) ~= false)
  end
  if is_wrong then mended = mended + 1 end
end
settle()
return {'OK', mended}

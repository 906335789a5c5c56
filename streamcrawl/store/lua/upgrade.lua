#!lua flags=allow-oom
-- upgrade.lua: bring a crawl of schema 1 (version 0.1) to schema 2, in one step.
--
-- KEYS[1] state     hash     the crawl's state; crawls of schema 1 have one shard
-- ARGV[1] epoch     str      the epoch the caller read
-- ARGV[2] was       msgpack  field, value, …: what the caller made the new values from; '' for a field that is not there
-- ARGV[3] values    msgpack  field, value, …: what the state is to say; '' removes a field
-- ARGV[4] lease_ms  int      a worker not heard of for that long is gone; 0: nobody else can be alive
--
-- Returns {'UPGRADED'}
--         {'SCHEMA', stored}   it is of another schema than 1, perhaps because somebody else was faster
--         {'CHANGED'}          the state says something else by now: read it again
--         {'FEEDING', feeder}  a command of version 0.1 is offering seeds; nothing is written
--         {'GONE'}
-- Derives `feeders`, `workers`. Cost O(workers). Repeat: harmless, says SCHEMA.
--
-- Workers of version 0.1 may be alive: all that they read stays where it is. Feeders may not, for they and ours would
-- not see each other, and each would close the crawl without the other. Those that died or left are kept as such: the
-- crawl stays unfed until somebody offers again.
-- include _state
local schema = call('HGET', KEYS[1], 'schema')
if schema ~= '1' then return {'SCHEMA', schema or ''} end
local was, values = cmsgpack.unpack(ARGV[2]), cmsgpack.unpack(ARGV[3])
for i = 1, #was, 2 do
  if (call('HGET', KEYS[1], was[i]) or '') ~= was[i + 1] then return {'CHANGED'} end
end
local is_anybody_alive, beats = false, call('HVALS', P .. 'workers')
for i = 1, #beats do
  -- Crawl time stands still while nobody works, so it alone would keep a dead feeder alive for ever.
  local beat = tonumber(string.match(beats[i], '^(%d+) ')) or 0
  if math.abs(wall - beat) < tonumber(ARGV[4]) then is_anybody_alive = true end
end
local row, feeders = call('HGETALL', KEYS[1]), {}
for i = 1, #row, 2 do
  local name = string.match(row[i], '^feeder:(.*)$')
  if name and is_anybody_alive and (tonumber(row[i + 1]) or 0) > now then return {'FEEDING', name} end
  feeders[#feeders + 1] = name
end
for i = 1, #feeders do
  call('HSET', P .. 'feeders', feeders[i], '0 ')
  call('HDEL', KEYS[1], 'feeder:' .. feeders[i])
end
for i = 1, #values, 2 do
  if values[i + 1] == '' then call('HDEL', KEYS[1], values[i]) else call('HSET', KEYS[1], values[i], values[i + 1]) end
end
call('HSET', KEYS[1], 'schema', '2', 'upgraded_from', schema)
return {'UPGRADED'}

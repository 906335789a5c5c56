#!lua flags=allow-oom
-- tune.lua: put another version of the tunable settings in force, from the next script call on.
--
-- KEYS[1] state     hash     the shard's state
-- ARGV[1] epoch     str      the epoch the caller joined with
-- ARGV[2] version   int      of these settings: one more than the version they were made from
-- ARGV[3] settings  str      JSON of what is set and where each value comes from; '' for shards but the first
-- ARGV[4] values    msgpack  field, value, …: what scripts read of them; '' removes one
--
-- Returns {'OK', version}       they are in force
--         {'CONFLICT', version} somebody else has set this version or a later one: read, and make them anew
--         {'GONE'}
-- Derives no other key. Repeat: says CONFLICT with its own version; the caller compares what is stored.
-- include _state
local have = tonumber(call('HGET', KEYS[1], 'version')) or 0
if have >= tonumber(ARGV[2]) then return {'CONFLICT', have} end
local values = cmsgpack.unpack(ARGV[4])
for i = 1, #values, 2 do
  if values[i + 1] == '' then call('HDEL', KEYS[1], values[i]) else call('HSET', KEYS[1], values[i], values[i + 1]) end
end
call('HSET', KEYS[1], 'version', ARGV[2])
if ARGV[3] ~= '' then call('HSET', KEYS[1], 'settings', ARGV[3]) end
return {'OK', tonumber(ARGV[2])}

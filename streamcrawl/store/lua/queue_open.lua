#!lua flags=allow-oom
-- queue_open.lua: create a TaskQueue, or join the one that is there.
--
-- KEYS[1] state     hash     the queue's state
-- ARGV[1] epoch     str      new and random, used only when the queue does not exist yet
-- ARGV[2] schema    int      version of everything stored
-- ARGV[3] levels    int      priority levels; '' takes what is there
-- ARGV[4] values    msgpack  field, value, …: settings that the caller names, in force for all from now on
-- ARGV[5] defaults  msgpack  field, value, …: of a new queue, for what the caller does not name
--
-- Returns {'OPENED', epoch, settings}  it was created; settings flat, as all have them
--         {'JOINED', epoch, settings}  it was there
--         {'SCHEMA', stored}           another version of streamcrawl wrote it
--         {'LEVELS', stored}           it has another number of levels, whose streams would be left behind
-- Derives `stream:<level>`. Repeat: harmless, says JOINED.
local call = redis.call
local P = string.sub(KEYS[1], 1, -6)
local values, defaults = cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[5])
local have = call('HMGET', KEYS[1], 'epoch', 'schema', 'levels')
local word, epoch = 'JOINED', have[1]
if epoch then
  if have[2] ~= ARGV[2] then return {'SCHEMA', have[2]} end
  if ARGV[3] ~= '' and have[3] ~= ARGV[3] then return {'LEVELS', have[3]} end
else
  word, epoch = 'OPENED', ARGV[1]
  call('HSET', KEYS[1], 'epoch', epoch, 'schema', ARGV[2], 'levels', ARGV[3] ~= '' and ARGV[3] or '1')
  for i = 1, #defaults, 2 do call('HSET', KEYS[1], defaults[i], defaults[i + 1]) end
end
for i = 1, #values, 2 do call('HSET', KEYS[1], values[i], values[i + 1]) end
for level = 0, tonumber(call('HGET', KEYS[1], 'levels')) - 1 do
  local made = redis.pcall('XGROUP', 'CREATE', P .. 'stream:' .. level, 'workers', '0', 'MKSTREAM')
  if type(made) == 'table' and made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then error(made.err) end
end
return {word, epoch, call('HGETALL', KEYS[1])}

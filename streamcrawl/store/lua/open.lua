#!lua flags=allow-oom
-- open.lua: create one shard of a crawl, or join the one that is there.
--
-- KEYS[1] state       hash     the shard's state
-- ARGV[1] epoch       str      used only when the shard does not exist yet: new and random for the first, the first's for
--                              the others
-- ARGV[2] schema      int      version of everything stored
-- ARGV[3] identity    str      JSON of the identity settings; must be equal for all
-- ARGV[4] sinks       msgpack  names of the sinks, each gets its stream and group
-- ARGV[5] values      msgpack  field, value, field, value, … put into a new shard: settings that scripts read
--
-- Returns {'OPENED', epoch}           it was created
--         {'JOINED', epoch}           it was there and is the same
--         {'SCHEMA', stored}          another version of streamcrawl wrote it
--         {'IDENTITY', stored JSON}   an identity setting differs
--         {'SINKS', stored names}     it was created with other sinks, whose records would be left behind
--         {'LEFTOVER', ''}            it is being deleted, or a deletion broke off: delete it to the end first
-- Derives `stream:fetch`, `stream:fetch:<sink>`. Repeat: harmless, says JOINED.
local call = redis.call
local P = string.sub(KEYS[1], 1, -6)
local sinks, values = cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[5])
table.sort(sinks)
local names = table.concat(sinks, ',')
local have = call('HMGET', KEYS[1], 'epoch', 'schema', 'identity', 'sinks')
local word, epoch = 'JOINED', have[1]
if epoch then
  if have[2] ~= ARGV[2] then return {'SCHEMA', have[2]} end
  if have[3] ~= ARGV[3] then return {'IDENTITY', have[3]} end
  if have[4] ~= names then return {'SINKS', have[4]} end
else
  -- A deletion removes the epoch first and the state last. In between old queues would become part of a new crawl.
  if call('EXISTS', KEYS[1]) == 1 then return {'LEFTOVER', ''} end
  word, epoch = 'OPENED', ARGV[1]
  call('HSET', KEYS[1], 'epoch', epoch, 'schema', ARGV[2], 'identity', ARGV[3], 'sinks', names, 'seen_buckets', 1)
  for i = 1, #values, 2 do
    if values[i + 1] ~= '' then call('HSET', KEYS[1], values[i], values[i + 1]) end
  end
end
local function make_group(stream)
  local made = redis.pcall('XGROUP', 'CREATE', stream, 'workers', '0', 'MKSTREAM')
  if type(made) == 'table' and made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then error(made.err) end
end
make_group(P .. 'stream:fetch')
for i = 1, #sinks do make_group(P .. 'stream:fetch:' .. sinks[i]) end
return {word, epoch}

#!lua flags=allow-oom
-- drop.lua: drop items of a stage that nobody is to read any more: they count as dropped, by the name 'removed'.
--
-- KEYS[1] state    hash     the shard's state
-- ARGV[1] epoch    str      the epoch the caller joined with
-- ARGV[2] stage    str      with its version
-- ARGV[3] upto     str      id of the last entry to drop: what comes later is left
-- ARGV[4] limit    int      entries at most
-- ARGV[5] delayed  msgpack  members of `delayed` that are items of the stage
--
-- Returns {'OK', dropped, left}  left: 1 when there are more entries up to `upto`
--         {'UNKNOWN'}            there is no such stage
--         {'GONE'}
-- Derives `stream:<stage>`, `delayed`, `totals`. Cost O(limit). Repeat: harmless, drops the next ones.
--
-- What a worker has in hand is dropped too: its commit finds nothing (LEASE_LOST). The flag of the stream goes with it, so
-- what it held back goes on.
-- include _state
-- include _items
local stage = ARGV[2]
if not STAGES[stage] then return {'UNKNOWN'} end
local stream, dropped, read, left = P .. 'stream:' .. stage, 0, 0, 0
while is_id(ARGV[3]) do
  local entry = call('XRANGE', stream, '-', ARGV[3], 'COUNT', 1)[1]
  if not entry then break end
  if dropped >= tonumber(ARGV[4]) or read >= 1000000 then
    left = 1
    break
  end
  local f = item_in(entry[2])
  call('XACK', stream, 'workers', entry[1])
  call('XDEL', stream, entry[1])
  count(stage .. '.streamed', -1)
  count(stage .. '.bytes', -#f.item)
  dropped, read = dropped + 1, read + #f.item
end
for _, member in ipairs(cmsgpack.unpack(ARGV[5])) do
  if string.match(member, '^stage|([^|]+)|') == stage and call('ZREM', P .. 'delayed', member) == 1 then
    count(stage .. '.delayed', -1)
    dropped = dropped + 1
  end
end
count(stage .. '.dropped', dropped)
count(stage .. '.dropped.removed', dropped)
watch_marks({stage})
flush_counts()
return {'OK', dropped, left}

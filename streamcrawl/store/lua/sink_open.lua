#!lua flags=allow-oom
-- sink_open.lua: become the one writer of a sink, and take back what earlier writers left unacknowledged.
--
-- KEYS[1] state     hash  the crawl's state
-- ARGV[1] epoch     str   the epoch the caller joined with
-- ARGV[2] sink      str   its name
-- ARGV[3] consumer  str   the new writer
-- ARGV[4] lease_ms  int   a writer not heard of for that long is gone
-- ARGV[5] limit     int   entries to take back at most
--
-- Returns {'OK', writer epoch, offset, left, part}  write from `offset` on, which lies in `part` as sink_commit was told;
--                                             `left` 1: call again before reading
--         {'BUSY', consumer}                  another writer is alive, or may be: the last call to any script is too long
--                                             ago (outage, clock jump), and one lease has not passed since
--         {'GONE'}
-- Derives `offsets`, `workers`, `stream:fetch:<sink>`. Repeat: harmless, the same consumer keeps its writer epoch.
-- include _state
-- include _hosts
-- include _items
-- include _stream
local sink, me, stream = ARGV[2], ARGV[3], P .. 'stream:fetch:' .. ARGV[2]
local have = call('HMGET', P .. 'offsets', sink .. ':owner', sink .. ':writer', sink .. ':offset', sink .. ':part')
local writer = tonumber(have[2]) or 0
if have[1] ~= me then
  local row = have[1] and call('HGET', P .. 'workers', have[1])
  local beat = row and tonumber(string.match(row, '^(%d+) '))
  local lease = tonumber(ARGV[4])
  if beat and (math.abs(wall - beat) < lease or is_after_gap(lease)) then return {'BUSY', have[1]} end
  writer = writer + 1
  call('HSET', P .. 'offsets', sink .. ':owner', me, sink .. ':writer', writer)
end
local rows = redis.pcall('XPENDING', stream, 'workers', '-', '+', tonumber(ARGV[5]))
local left = 0
if rows.err then
  redis.pcall('XGROUP', 'CREATE', stream, 'workers', '0', 'MKSTREAM')
else
  for i = 1, #rows do
    take_back_row(stream, rows[i][1], false, false, '')
  end
  if #rows == tonumber(ARGV[5]) then
    left = 1
  else
    -- Names of earlier writers would pile up. Nothing is pending under them now.
    for _, row in ipairs(call('XINFO', 'CONSUMERS', stream, 'workers')) do
      if row[2] ~= me then call('XGROUP', 'DELCONSUMER', stream, 'workers', row[2]) end
    end
  end
end
-- A stream that was lost took its bytes along.
if call('XLEN', stream) == 0 then count(sink .. '.bytes', -bytes_in(sink)) end
flush_counts()
return {'OK', writer, tonumber(have[3]) or 0, left, have[4] or ''}

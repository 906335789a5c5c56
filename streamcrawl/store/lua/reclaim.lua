#!lua flags=allow-oom
-- reclaim.lua: take back what was not renewed for a whole lease (its machine died, or was cut off).
--
-- KEYS[1] state     hash  the crawl's state
-- ARGV[1] epoch     str   the epoch the caller joined with
-- ARGV[2] stream    str   what follows the prefix, `stream:fetch` or `stream:fetch:<sink>`
-- ARGV[3] lease_ms  int   idle time after which an entry is taken back
-- ARGV[4] limit     int   entries at most
--
-- Returns {'OK', back}     so many were taken back
--         {'HOLD', ms}     the last tick is too long ago (outage, sleep, clock jump): for that long nobody loses a lease
--         {'GONE'}
-- Derives the stream, `queue:<host>:<level>`, `host:<host>`, `schedule`, `dead`. Cost O(pending + consumers); of rows to stamp
-- anew after a clock that went back, 1,000 a call.
-- Repeat: harmless. A stream without its group gets it again.
--
-- By XPENDING IDLE rather than XAUTOCLAIM: nothing needs to be claimed inside one script, there is no cursor that
-- renewed rows in front could starve, and rows whose entries were deleted are seen.
-- include _state
-- include _hosts
-- include _items
-- include _stream
-- include _lease
local stream, lease, limit = P .. ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local cut = 'reclaim_cut:' .. ARGV[2]
local held_ms = hold_ms(stream, ARGV[2], lease)
if held_ms > 0 then return {'HOLD', held_ms} end

local rows = redis.pcall('XPENDING', stream, 'workers', 'IDLE', lease, '-', '+', limit)
if rows.err then
  -- The group is gone. Where every host has its share in the stream nobody dispatches, which would make it again too.
  waiting_in(stream)
  return {'OK', 0}
end
local consumers, held = call('XINFO', 'CONSUMERS', stream, 'workers'), {}
for _, row in ipairs(consumers) do held[row[2]] = row[4] end
-- While more is left than one call takes, the last entry of a worker is not the only one it had in hand.
local is_cut, was_cut = #rows == limit, call('HGET', KEYS[1], cut) == '1'
local back = 0
for i = #rows, 1, -1 do
  local id, who = rows[i][1], rows[i][2]
  local alone = held[who] == 1 and not is_cut and not was_cut
  if take_back_row(stream, id, true, alone, who, true) then back = back + 1 end
end
if is_cut and not was_cut then call('HSET', KEYS[1], cut, '1') end
if was_cut and not is_cut then call('HDEL', KEYS[1], cut) end
-- Names of workers that died would pile up. Only without pending rows, which DELCONSUMER would forget; whoever lives
-- after all gets its name back with its next read.
for _, row in ipairs(consumers) do
  if row[6] >= 3 * lease and #call('XPENDING', stream, 'workers', '-', '+', 1, row[2]) == 0 then
    call('XGROUP', 'DELCONSUMER', stream, 'workers', row[2])
  end
end
if ARGV[2] == 'stream:fetch' then count('reclaimed', back) end
settle()
flush_counts()
return {'OK', back}

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
local stream, lease, limit = P .. ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local tick, hold, cut = 'reclaim_at:' .. ARGV[2], 'reclaim_hold:' .. ARGV[2], 'reclaim_cut:' .. ARGV[2]
local fix = 'reclaim_fix:' .. ARGV[2]
local kept = call('HMGET', KEYS[1], tick, hold, cut, fix)
local last, held_until, fix_from = tonumber(kept[1]), tonumber(kept[2]) or 0, kept[4]
call('HSET', KEYS[1], tick, wall)
if last and wall < last then
  fix_from = '-'
  call('HSET', KEYS[1], fix, fix_from)
end
if fix_from then
  -- The clock went back: rows stamped by the old one would look fresh until it is there again, an hour after their worker
  -- died. A stamp in the future reads as idle 0, like one of just now, to which a new stamp does nothing.
  local rows = redis.pcall('XPENDING', stream, 'workers', fix_from, '+', 1000)
  local ids_of = {}
  if rows.err then rows = {} end
  for _, row in ipairs(rows) do
    if row[3] == 0 then
      ids_of[row[2]] = ids_of[row[2]] or {'XCLAIM', stream, 'workers', row[2], 0}
      table.insert(ids_of[row[2]], row[1])
    end
  end
  for _, query in pairs(ids_of) do
    query[#query + 1] = 'IDLE' query[#query + 1] = 0 query[#query + 1] = 'JUSTID'
    call(unpack(query))
  end
  if #rows == 1000 then call('HSET', KEYS[1], fix, '(' .. rows[1000][1]) else call('HDEL', KEYS[1], fix) end
end
if not last or wall - last > lease / 2 or wall < last then
  -- Whoever is alive could not renew during that gap either: give everybody one whole lease to do it.
  held_until = wall + lease
  call('HSET', KEYS[1], hold, held_until)
end
if wall < held_until and held_until - wall <= lease then return {'HOLD', held_until - wall} end

local rows = redis.pcall('XPENDING', stream, 'workers', 'IDLE', lease, '-', '+', limit)
if rows.err then
  -- The group is gone. Where every host has its share in the stream nobody dispatches, which would make it again too.
  waiting_in(stream)
  return {'OK', 0}
end
local consumers, held = call('XINFO', 'CONSUMERS', stream, 'workers'), {}
for _, row in ipairs(consumers) do held[row[2]] = row[4] end
-- While more is left than one call takes, the last entry of a worker is not the only one it had in hand.
local is_cut, was_cut = #rows == limit, kept[3] == '1'
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

#!lua flags=allow-oom
-- put_back.lua: a worker is known to be dead: take everything it held back at once, counting the crash.
--
-- KEYS[1] state     hash  the crawl's state
-- ARGV[1] epoch     str   the epoch the caller joined with
-- ARGV[2] stream    str   what follows the prefix, `stream:fetch` or `stream:fetch:<sink>`
-- ARGV[3] consumer  str   the dead one; '' for every consumer of the group (only when no worker can be alive)
-- ARGV[4] crash     str   '1' it died with them in hand, '0' it ended in order
-- ARGV[5] limit     int   entries at most, 3 or more
--
-- Returns {'OK', back, left}  `left` 1 when there may be more: call again
--         {'GONE'}
-- Derives the stream, `queue:<host>:<level>`, `host:<host>`, `schedule`, `dead`, `workers`. Repeat: harmless.
--
-- The consumer is removed with its last entry, never before: XGROUP DELCONSUMER forgets what is pending.
-- include _state
-- include _hosts
-- include _items
-- include _stream
local stream, who, crash, limit = P .. ARGV[2], ARGV[3], ARGV[4] == '1', tonumber(ARGV[5])
local function forget(consumer)
  call('XGROUP', 'DELCONSUMER', stream, 'workers', consumer)
  call('HDEL', P .. 'workers', consumer)
end
if who == '' then
  -- One of them a call, so that "alone" is judged by all that it held.
  local first = redis.pcall('XPENDING', stream, 'workers', '-', '+', 1)
  if first.err then return {'OK', 0, 0} end
  if #first == 0 then
    for _, row in ipairs(call('XINFO', 'CONSUMERS', stream, 'workers')) do forget(row[2]) end
    return {'OK', 0, 0}
  end
  who = first[1][2]
end
local rows = redis.pcall('XPENDING', stream, 'workers', '-', '+', limit, who)
if rows.err then return {'OK', 0, 0} end
local is_cut, back = #rows == limit, 0
-- Two stay for the next call: a last one by itself would pass for the only one its worker had in hand.
for i = is_cut and limit - 2 or #rows, 1, -1 do
  if take_back_row(stream, rows[i][1], crash, #rows == 1, who, true) then back = back + 1 end
end
settle()
flush_counts()
if is_cut then return {'OK', back, 1} end
forget(who)
return {'OK', back, ARGV[3] == '' and 1 or 0}

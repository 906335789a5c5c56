#!lua
-- queue_put.lua: accept items, in order, while there is room.
--
-- KEYS[1] state   hash  the queue's state
-- ARGV[1] epoch   str   the epoch the caller joined with
-- ARGV[2] member  str   who puts
-- ARGV[3] turn    int   of this call; a member makes one after another
-- ARGV[4] known   int   so many of its items it knows to be accepted
-- ARGV[5] mode    str   '' | 'again': accepted before, and forgotten by the store: neither full nor closed refuses them
--                          | 'inside': who puts them has an item of this queue out, and would wait for itself: full does not
-- ARGV[6..] item  str   `<level> <delay ms> <size of id> <id><bytes>`, at most 250; an id that was put before within
--                       the window (the newest `dedup_max` of the last `dedup_ms`) is not put again
--
-- Returns {'OK', accepted, left, last, level, why}  the first so many; fewer than given: it is full, why 'dead' when that is
--                                 for its dead letters, which are as many as `dead_max`; else ''. `last`: of this member in
--                                 all; `level`: how full it is by now, in thousandths of `maxsize`, 0 without one
--         {'CLOSED'}              nothing was written
--         {'FORGOT', last}        the store lost what followed number `last`; nothing was written
--         {'INVALID', which}      not written by us; nothing was written
--         {'GONE'}
-- Derives `stream:<level>`, `delayed`, `dead`, `puts`, `ids`, `totals`. Cost O(items). Not allow-oom: a full server refuses
-- new work.
-- Repeat: harmless: the answer to the last turn of each member is kept (`puts`: last, turn, accepted, when; for a day,
-- queue_reclaim.lua). It says the same, also when there is room by then: the rest goes on as another turn, whose items
-- need not be these, so a call that the server reads late must write none of them.
-- include _queue
local turn, MOST = tonumber(ARGV[3]), tonumber(S.maxsize)
local function level(room)
  if MOST == 0 then return 0 end
  return math.floor(1000 * (room < math.huge and MOST - room or size()) / MOST)
end
local stored = call('HGET', P .. 'puts', ARGV[2]) or ''
local last = tonumber(string.match(stored, '^%d+')) or 0
local last_turn, answered = string.match(stored, '^%d+ (%d+) (%d+) ')
-- An older one was given up: nobody reads this answer.
if last_turn and tonumber(last_turn) >= turn then
  return {'OK', tonumber(answered), unsettled(), last, level(math.huge), ''}
end
if last < tonumber(ARGV[4]) then return {'FORGOT', last} end
local items, ids = {}, 0
for n = 6, #ARGV do
  local _, head, level, delay_ms, id_size = string.find(ARGV[n], '^(%d+) (%d+) (%d+) ')
  if not head or tonumber(level) >= LEVELS or head + tonumber(id_size) > #ARGV[n] then return {'INVALID', n - 6} end
  items[#items + 1] = {level, tonumber(delay_ms), string.sub(ARGV[n], head + 1, head + id_size), head + id_size + 1, n}
  if id_size ~= '0' then ids = ids + 1 end
end
if is_closed and ARGV[5] ~= 'again' and #items > 0 then return {'CLOSED'} end
local room, accepted, why = math.huge, 0, ''
if ARGV[5] == '' and MOST > 0 then room = MOST - size() end
-- What dies is always taken, or an item would be lost: so what could die next is not. A queue that an older version made
-- has no bound of its own.
local dead_max = tonumber(S.dead_max) or 100000
if ARGV[5] == '' and dead_max > 0 and call('XLEN', P .. 'dead') >= dead_max then why = 'dead' end
local cutoff, known = now - tonumber(S.dedup_ms), P .. 'ids'
for i = 1, #items do
  if room <= 0 or why == 'dead' then break end
  local level, delay_ms, id, at, n = unpack(items[i])
  local seen = id ~= '' and call('ZSCORE', known, id)
  if seen and tonumber(seen) > cutoff then
    count('repeated', 1)
  else
    if id ~= '' then call('ZADD', known, string.format('%.0f', now), id) end
    local item = string.sub(ARGV[n], at)
    if delay_ms > 0 then
      delay(level, {item = item, attempts = 0, crashes = 0}, delay_ms, ARGV[2] .. ':' .. (last + i))
    else
      call('XADD', stream_of(level), '*', 'item', item)
    end
    count('created', 1)
    room = room - 1
  end
  accepted = i
end
call('HSET', P .. 'puts', ARGV[2], table.concat({last + accepted, turn, accepted, wall}, ' '))
if ids > 0 then
  -- At most a few more than came: the window shrinks to its bounds without ever removing much at once.
  local old = call('ZRANGEBYSCORE', known, '-inf', string.format('%.0f', cutoff), 'LIMIT', 0, 2 * ids)
  if #old > 0 then call('ZREM', known, unpack(old)) end
  local over = call('ZCARD', known) - tonumber(S.dedup_max)
  if over > 0 then call('ZREMRANGEBYRANK', known, 0, math.min(over, 2 * ids) - 1) end
end
flush_counts()
return {'OK', accepted, unsettled(), last + accepted, level(room), why}

#!lua
-- queue_put.lua: accept items, in order, while there is room.
--
-- KEYS[1] state   hash  the queue's state
-- ARGV[1] epoch   str   the epoch the caller joined with
-- ARGV[2] member  str   who puts; its items are numbered from 1
-- ARGV[3] first   int   number of the first item here
-- ARGV[4] mode    str   '' | 'again': accepted before, and forgotten by the store: neither full nor closed refuses them
-- ARGV[5..] item  str   `<level> <delay ms> <size of id> <id><bytes>`, at most 250; an id that was put before within
--                       the window (the newest `dedup_max` of the last `dedup_ms`) is not put again
--
-- Returns {'OK', accepted, left, why}  the first so many, earlier calls counted; fewer than given: it is full, why 'dead'
--                                 when that is for its dead letters, which are as many as `dead_max`; else ''
--         {'CLOSED', accepted}    so many were accepted before it was closed
--         {'FORGOT', last}        the store lost what followed number `last`; nothing was written
--         {'INVALID', which}      not written by us; nothing was written
--         {'GONE'}
-- Derives `stream:<level>`, `delayed`, `dead`, `puts`, `ids`, `totals`. Cost O(items). Not allow-oom: a full server refuses new work.
-- Repeat: harmless: a member puts one batch after another, so the number of its last accepted item says what of a batch
-- whose answer was lost is there. That is one number for each member, for a day (queue_reclaim.lua).
-- include _queue
local first = tonumber(ARGV[3])
local stored = call('HGET', P .. 'puts', ARGV[2])
local last = tonumber(string.match(stored or '', '^%d+')) or 0
if last < first - 1 then return {'FORGOT', last} end
local items, ids = {}, 0
for n = 5, #ARGV do
  local _, head, level, delay_ms, id_size = string.find(ARGV[n], '^(%d+) (%d+) (%d+) ')
  if not head or tonumber(level) >= LEVELS or head + tonumber(id_size) > #ARGV[n] then return {'INVALID', n - 5} end
  items[#items + 1] = {level, tonumber(delay_ms), string.sub(ARGV[n], head + 1, head + id_size), head + id_size + 1, n}
  if id_size ~= '0' then ids = ids + 1 end
end
local accepted = math.min(#items, last - first + 1)
if is_closed and ARGV[4] == '' and accepted < #items then return {'CLOSED', accepted} end
local room = math.huge
if ARGV[4] == '' and tonumber(S.maxsize) > 0 then room = tonumber(S.maxsize) - size() end
-- What dies is always taken, or an item would be lost: so what could die next is not. A queue that an older version made
-- has no bound of its own.
local dead_max = tonumber(S.dead_max) or 100000
local why = ''
if ARGV[4] == '' and dead_max > 0 and call('XLEN', P .. 'dead') >= dead_max then room, why = 0, 'dead' end
local cutoff, known = now - tonumber(S.dedup_ms), P .. 'ids'
local was = accepted
for i = accepted + 1, #items do
  if room <= 0 then break end
  local level, delay_ms, id, at, n = unpack(items[i])
  local seen = id ~= '' and call('ZSCORE', known, id)
  if seen and tonumber(seen) > cutoff then
    count('repeated', 1)
  else
    if id ~= '' then call('ZADD', known, string.format('%.0f', now), id) end
    local item = string.sub(ARGV[n], at)
    if delay_ms > 0 then
      delay(level, {item = item, attempts = 0, crashes = 0}, delay_ms, ARGV[2] .. ':' .. (first + i - 1))
    else
      call('XADD', stream_of(level), '*', 'item', item)
    end
    count('created', 1)
    room = room - 1
  end
  accepted = i
end
if accepted > was then call('HSET', P .. 'puts', ARGV[2], (first + accepted - 1) .. ' ' .. wall) end
if ids > 0 then
  -- At most a few more than came: the window shrinks to its bounds without ever removing much at once.
  local old = call('ZRANGEBYSCORE', known, '-inf', string.format('%.0f', cutoff), 'LIMIT', 0, 2 * ids)
  if #old > 0 then call('ZREM', known, unpack(old)) end
  local over = call('ZCARD', known) - tonumber(S.dedup_max)
  if over > 0 then call('ZREMRANGEBYRANK', known, 0, math.min(over, 2 * ids) - 1) end
end
flush_counts()
return {'OK', accepted, unsettled(), why}

#!lua flags=allow-oom
-- queue_tick.lua: put what is due into its level, and say how the queue stands.
--
-- KEYS[1] state   hash  the queue's state
-- ARGV[1] epoch   str   the epoch the caller joined with
-- ARGV[2] member  str   who asks
-- ARGV[3] limit   int   items to move at most
--
-- Returns {'OK', moved, next_ms, left, closed, last, turn, accepted}  until the next one is due, -1 when none is delayed;
--                       unsettled items; 1 or 0; of this member: its items, its last put, and how many of that were accepted
--         {'GONE'}
-- Derives `delayed`, `stream:<level>`, `puts`. Cost O(moved). Repeat: harmless.
-- include _queue
local due = call('ZRANGEBYSCORE', DELAYED, '-inf', string.format('%.0f', now), 'LIMIT', 0, tonumber(ARGV[3]))
for _, member in ipairs(due) do
  local _, head, level, attempts, crashes, put_ms = string.find(member, '^(%d+) (%d+) (%d+) (%d+) %S+ ')
  if head then
    enter(level, {item = string.sub(member, head + 1), attempts = tonumber(attempts), crashes = tonumber(crashes), put_ms = put_ms})
  end
  call('ZREM', DELAYED, member)
end
local first, next_ms = call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES'), -1
if first[2] then next_ms = math.max(0, tonumber(first[2]) - now) end
local row = call('HGET', P .. 'puts', ARGV[2]) or ''
local last, turn, accepted = string.match(row, '^(%d+) (%d+) (%d+) ')
last = last or string.match(row, '^%d+')
return {'OK', #due, next_ms, unsettled(), is_closed and 1 or 0, tonumber(last) or 0, tonumber(turn) or 0, tonumber(accepted) or 0}

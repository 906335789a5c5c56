#!lua flags=allow-oom
-- queue_stats.lua: all that is counted of a TaskQueue, at one instant.
--
-- KEYS[1] state  hash  the queue's state
-- ARGV[1] epoch  str   the epoch the caller joined with
--
-- Returns {'OK', settings, totals, {waiting, pending, oldest id, …}, delayed, dead, {member, 'ms ago JSON', …}}  flat; three
--                                                           for each level, the oldest '' when it is empty
--         {'GONE'}
-- Derives every key. Cost O(levels + members). Repeat: it only reads.
-- include _queue
local levels, members = {}, call('HGETALL', P .. 'members')
for level = 0, LEVELS - 1 do
  local stream = stream_of(level)
  local waiting = waiting_in(stream)
  local oldest = call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  levels[#levels + 1] = waiting
  levels[#levels + 1] = call('XLEN', stream) - waiting
  levels[#levels + 1] = oldest and wall - tonumber(string.match(oldest[1], '^%d+')) or -1
end
for i = 2, #members, 2 do
  local beat, info = string.match(members[i], '^(%d+) (.*)$')
  members[i] = (wall - tonumber(beat)) .. ' ' .. info
end
return {'OK', call('HGETALL', KEYS[1]), call('HGETALL', P .. 'totals'), levels, call('ZCARD', DELAYED), call('XLEN', P .. 'dead'), members}

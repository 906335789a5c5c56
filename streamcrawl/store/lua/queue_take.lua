#!lua flags=allow-oom
-- queue_take.lua: read from the levels of a TaskQueue: the urgent first, the others with a share that is theirs.
--
-- KEYS[1] state   hash  the queue's state
-- ARGV[1] epoch   str   the epoch the caller joined with
-- ARGV[2] member  str   who reads
-- ARGV[3] count   int   entries at most
--
-- Returns {'OK', {entries, …}}  for each level, as XRANGE gives them
--         {'GONE'}
-- Derives `stream:<level>`. Cost O(count + levels).
-- Repeat: not harmless: what a lost answer held is the caller's, who finds it under its name (XREADGROUP of its history).
--
-- Of all that is taken while every level has work, at least one in 4^level is of that level: a share, because under an
-- urgent level that never runs empty the others would starve; a quarter, because it has to stay the exception. Their turns
-- never meet: level 1 has those that leave 3 when divided by 4, level 2 those that leave 2 by 16, and so on.
-- include _queue
local left, turn = tonumber(ARGV[3]), tonumber(S.turn) or 0
local wanted, got, taken = {}, {}, 0
for level = 1, LEVELS - 1 do
  local every, first = 4 ^ level, 4 - level
  wanted[level] = math.floor((turn + left - 1 - first) / every) - math.floor((turn - 1 - first) / every)
end
for level = 0, LEVELS - 1 do got[level + 1] = {} end
local function take(level, n)
  local answer = redis.pcall('XREADGROUP', 'GROUP', 'workers', ARGV[2], 'COUNT', n, 'STREAMS', stream_of(level), '>')
  if not answer then return end
  if answer.err then
    waiting_in(stream_of(level))   -- makes the group again
    return
  end
  for _, entry in ipairs(answer[1][2]) do table.insert(got[level + 1], entry) end
  left, taken = left - #answer[1][2], taken + #answer[1][2]
end
for level = LEVELS - 1, 1, -1 do
  if wanted[level] > 0 then take(level, wanted[level]) end
end
for level = 0, LEVELS - 1 do
  if left > 0 then take(level, left) end
end
if taken > 0 then call('HSET', KEYS[1], 'turn', (turn + taken) % 4 ^ LEVELS) end
return {'OK', got}

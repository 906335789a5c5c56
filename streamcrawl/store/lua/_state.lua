-- fragment _state.lua: what _now reads, with the clock noted, and what keeps tasks from being handed out. First in every
-- script that may write.
-- include _now
call('HSET', KEYS[1], 'clock_ms', now, 'wall_ms', wall)
if has_jumped then call('HSET', KEYS[1], 'gap_at', wall) end

-- What keeps tasks from being handed out: since when (`held_at:<word>`, wall clock, there while it lasts), and how long it
-- has lasted in all (`held_ms:<word>`). Words: paused, frontier_full, memory_full, and full:<stage> of a stream over its
-- mark. Both may be said again.
local function hold(word) call('HSETNX', KEYS[1], 'held_at:' .. word, wall) end
local function let_go(word)
  local since = tonumber(call('HGET', KEYS[1], 'held_at:' .. word))
  if not since then return end
  call('HDEL', KEYS[1], 'held_at:' .. word)
  call('HINCRBY', KEYS[1], 'held_ms:' .. word, math.max(0, wall - since))
end

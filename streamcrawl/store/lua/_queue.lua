-- fragment _queue.lua: the epoch check, the clock, the settings and the entries of a TaskQueue. First in its scripts.
--
-- KEYS[1] is always `<prefix>state` and ARGV[1] the epoch that the caller joined with; another one means that the queue was
-- deleted. `wall` is the server's TIME in ms. `now` is queue time: the wall clock, but it never goes back, or all that is
-- delayed would wait for the jump as well. Forward it follows: time without anybody looking is no different from a jump,
-- and what became due meanwhile is due.
local call = redis.call
local P = string.sub(KEYS[1], 1, -6)
local S = {}
do
  local names = {'epoch', 'levels', 'maxsize', 'attempts_max', 'crashes_max', 'lease_ms', 'dedup_ms', 'dedup_max', 'closed',
    'wall_ms', 'ahead_ms', 'turn', 'dead_max'}
  local values = call('HMGET', KEYS[1], unpack(names))
  for i = 1, #names do S[names[i]] = values[i] or nil end
end
if S.epoch ~= ARGV[1] then return {'GONE'} end
local time = call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)
local ahead = tonumber(S.ahead_ms) or 0
do
  local last = tonumber(S.wall_ms) or wall
  if wall < last then
    ahead = ahead + last - wall
    call('HSET', KEYS[1], 'ahead_ms', ahead, 'wall_ms', wall)
  elseif not S.wall_ms or wall - last >= 1000 then
    call('HSET', KEYS[1], 'wall_ms', wall)   -- each second is enough: a shorter jump back delays by less than one
  end
end
local now = wall + ahead
local LEVELS, LEASE = tonumber(S.levels), tonumber(S.lease_ms)
local DELAYED = P .. 'delayed'
local is_closed = S.closed == '1'
local function stream_of(level) return P .. 'stream:' .. level end

-- include _common

-- All that is accepted and not settled: `join` waits for this to be 0. Exact, because what is settled is deleted.
local function unsettled()
  local n = call('ZCARD', DELAYED)
  for level = 0, LEVELS - 1 do n = n + call('XLEN', stream_of(level)) end
  return n
end
-- What nobody has taken yet, which is what `maxsize` bounds.
local function size()
  local n = call('ZCARD', DELAYED)
  for level = 0, LEVELS - 1 do n = n + waiting_in(stream_of(level)) end
  return n
end

-- An item that was tried before carries how often, and when it was first put; a fresh one is its bytes alone.
local function enter(level, f)
  if f.attempts + f.crashes == 0 and not f.put_ms then call('XADD', stream_of(level), '*', 'item', f.item)
  else
    call('XADD', stream_of(level), '*', 'item', f.item, 'attempts', f.attempts, 'crashes', f.crashes, 'put_ms', f.put_ms or wall)
  end
end
local function delay(level, f, ms, unique)
  local due = string.format('%.0f', now + ms + 1)   -- `now` is rounded down: never a moment too early
  call('ZADD', DELAYED, due, table.concat({level, f.attempts, f.crashes, f.put_ms or wall, unique, f.item}, ' '))
end
local function bury(level, f, reason, error)
  call('XADD', P .. 'dead', '*', 'item', f.item, 'level', level, 'attempts', f.attempts, 'crashes', f.crashes,
    'put_ms', f.put_ms or wall, 'reason', reason, 'error', error)
  count('dead', 1)
end

-- End one delivery of an entry and return what it held; nil when it is not (or no longer) delivered. XACK answers 1 to one
-- caller only, and an entry is never handed over in place, so its id is the fence. False: it was deleted by hand.
local function leave(level, id)
  local stream = stream_of(level)
  local entry = call('XRANGE', stream, id, id)[1]
  if call('XACK', stream, 'workers', id) ~= 1 then return nil end
  if not entry then return false end
  call('XDEL', stream, id)
  local f = {item = ''}
  for i = 1, #entry[2], 2 do f[entry[2][i]] = entry[2][i + 1] end
  f.attempts, f.crashes = tonumber(f.attempts) or 0, tonumber(f.crashes) or 0
  f.put_ms = f.put_ms or string.match(id, '^%d+')
  return f
end

-- fragment _now.lua: the epoch check, the crawl's clock, its settings and its counters, read and not written: all that a
-- script which only looks begins with. Every other one includes _state, which notes the clock too.
--
-- KEYS[1] is always `<prefix>state`; every other key is derived from its prefix, by the words of keys.py.
-- ARGV[1] is always the epoch the caller joined with; another one means the crawl was deleted or begun afresh.
--
-- `wall` is the server's TIME in ms. `now` is crawl time in ms: it starts as the wall clock, never goes back, and
-- advances by at most 5 s from one call to the next. Workers call every second, so a larger step is an outage or a
-- clock that jumped: neither may make every delay, back-off and give-up of the crawl pass at once.
local call = redis.call
-- Kept here, because each use of `string.find` looks up two names: what a script does for each task goes by these.
local find, match, sub, max, min = string.find, string.match, string.sub, math.max, math.min
local P = string.sub(KEYS[1], 1, -6)
local S = {}
do
  local names = {'epoch', 'clock_ms', 'wall_ms', 'delay_ms', 'delay_factor', 'delay_max_ms', 'demotion_max', 'cap', 'robots', 'pages_max', 'pages_per_host_max',
    'frontier_max', 'revisit_ms', 'seeds_max', 'sink_max', 'sink_max_bytes', 'crashes_max', 'slots', 'paused', 'stopped',
    'throttled', 'seen', 'seen_buckets', 'gap_at', 'stage_max', 'stage_bytes', 'stages', 'by_domain', 'logs'}
  local values = call('HMGET', KEYS[1], unpack(names))
  for i = 1, #names do if values[i] then S[names[i]] = values[i] end end
end
if S.epoch ~= ARGV[1] then return {'GONE'} end
local time = call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)
local now, has_jumped = tonumber(S.clock_ms) or wall, false
do
  local step = wall - (tonumber(S.wall_ms) or wall)
  if step > 0 and step <= 5000 then now = now + step end
  has_jumped = step < 0 or step > 5000
  if has_jumped then S.gap_at = wall end
end
-- Is the age of a worker's stamp in doubt? For one lease after a jump or an outage whoever lives may not have renewed it.
local function is_after_gap(lease)
  local age = wall - (tonumber(S.gap_at) or -math.huge)
  return age >= 0 and age < lease
end
local CAP, DELAY = tonumber(S.cap) or 1, tonumber(S.delay_ms) or 0
-- The state of a crawl that is older than these settings does not say: then their defaults hold (settings.py).
local DELAY_FACTOR, DELAY_MAX = tonumber(S.delay_factor) or 2, tonumber(S.delay_max_ms) or 60000
local DEMOTION_MAX = tonumber(S.demotion_max) or 16
local STREAM = P .. 'stream:fetch'
-- Do all hosts of one registrable domain count as one? Fixed when the crawl is made.
local BY_DOMAIN = S.by_domain == '1'

-- include _common

#!lua flags=allow-oom
-- feed.lua: who still offers seeds. The crawl is closed by the last of them, once each has offered all of its own.
--
-- KEYS[1] state     hash  the state of the crawl's first shard, which knows all feeders
-- ARGV[1] epoch     str   the epoch the caller joined with
-- ARGV[2] feeder    str   who: the same name for the same seeds, so that a second try takes the place of the first
-- ARGV[3] what      str   'begin'  seeds will come; feeders that died are forgotten: whoever starts has been told
--                         'alone'  the same, and nobody else can be alive
--                         'sign'   still at it
--                         'done'   all are offered
--                         'leave'  ended before, in order: the rest is for another run
--                         'open'   (an operator) keep the crawl open whoever is done, until 'close'
--                         'close'  (an operator) the crawl may end: nobody is waited for but feeders that live
-- ARGV[4] lease_ms  int   crawl time after which a feeder that gave no sign counts as dead
-- ARGV[5] cursor    str   how far the feeder is, as it wrote it; '' leaves it as it is
--
-- Returns {'OK', left, cursor}  feeders left, dead ones included, and one more when the crawl is kept open: 0 says that
--                               it is closed now; the cursor of this feeder, '' when it has none
--         {'GONE'}
-- Derives `feeders`. Repeat: harmless.
-- include _state
local F, me, what, left = P .. 'feeders', ARGV[2], ARGV[3], 0
local row = call('HGET', F, me)
local cursor = ARGV[5] ~= '' and ARGV[5] or row and string.match(row, '^%d+ (.*)$') or ''
if what == 'open' then call('HSET', KEYS[1], 'open', '1')
elseif what == 'close' then call('HDEL', KEYS[1], 'open')
elseif what == 'done' then call('HDEL', F, me)
else call('HSET', F, me, (what == 'leave' and 0 or now + tonumber(ARGV[4])) .. ' ' .. cursor) end
local rows = call('HGETALL', F)
for i = 1, #rows, 2 do
  local until_ms = tonumber(string.match(rows[i + 1], '^%d+')) or 0
  local is_dead = what == 'alone' or (what == 'begin' or what == 'close') and until_ms <= now
  if is_dead and rows[i] ~= me then call('HDEL', F, rows[i]) else left = left + 1 end
end
if call('HGET', KEYS[1], 'open') == '1' then left = left + 1 end
if left > 0 then call('HDEL', KEYS[1], 'closed') else call('HSET', KEYS[1], 'closed', 1) end
return {'OK', left, cursor}

#!lua flags=allow-oom
-- feed.lua: who still offers seeds. The crawl is closed by the last of them, once each has offered all of its own.
--
-- KEYS[1] state     hash  the crawl's state
-- ARGV[1] epoch     str   the epoch the caller joined with
-- ARGV[2] feeder    str   who: the same name for the same seeds, so that a second try takes the place of the first
-- ARGV[3] what      str   'begin'  seeds will come; feeders that died are forgotten: whoever starts has been told
--                         'alone'  the same, and nobody else can be alive
--                         'sign'   still at it
--                         'done'   all are offered
--                         'leave'  ended before, in order: the rest is for another run
-- ARGV[4] lease_ms  int   crawl time after which a feeder that gave no sign counts as dead
--
-- Returns {'OK', left}  feeders left, dead ones included; after 'done' 0 says that the crawl is closed now
--         {'GONE'}
-- Derives no other key. Repeat: harmless.
-- include _state
local me, what, left = 'feeder:' .. ARGV[2], ARGV[3], 0
if what == 'done' then call('HDEL', KEYS[1], me)
else call('HSET', KEYS[1], me, what == 'leave' and 0 or now + tonumber(ARGV[4])) end
local row = call('HGETALL', KEYS[1])
for i = 1, #row, 2 do
  if string.sub(row[i], 1, 7) == 'feeder:' then
    local is_dead = what == 'alone' or what == 'begin' and tonumber(row[i + 1]) <= now
    if is_dead and row[i] ~= me then call('HDEL', KEYS[1], row[i]) else left = left + 1 end
  end
end
if left > 0 then call('HDEL', KEYS[1], 'closed') else call('HSET', KEYS[1], 'closed', 1) end
return {'OK', left}

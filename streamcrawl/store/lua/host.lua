#!lua flags=allow-oom
-- host.lua: what an operator says of one host: its delay, its cap, whether it is fetched at all.
-- Where politeness is by domain, delay and cap are said of the whole domain, and so is the chance but for given up.
--
-- KEYS[1] state   hash     the shard's state
-- ARGV[1] epoch   str      the epoch the caller joined with
-- ARGV[2] host    str      host key, with its domain where politeness is by domain (`named`)
-- ARGV[3] values  msgpack  name, value, …; '' goes back to the crawl's own
--                          delay    ms, instead of the crawl's delay and the host's Crawl-delay
--                          cap      fetches at a time
--                          blocked  '1': nothing of it is dispatched, its tasks wait in its queue and do not hold the end
--                          chance   '1': forget that it failed, refused, was given up or demoted (its dead letters stay where they are)
--
-- Returns {'OK'}    in force from the next dispatch on
--         {'MANY'}  10,000 hosts are blocked already: a rule that keeps them out of the crawl is the better way; nothing
--                   is written
--         {'INVALID'} its domain is not named, or it is not under it; nothing is written
--         {'GONE'}
-- Derives `host:<host>`, `domain:<domain>`, `turns:<domain>`, `probes:<domain>`, `schedule`, `blocked`, `failing`, `giving_up`,
-- `demoted`. Repeat: harmless.
-- include _state
-- include _hosts
local key, of = named(ARGV[2])
if not key then return {'INVALID'} end
local h = host(key, of)
local p = pace_of(h)
local values = cmsgpack.unpack(ARGV[3])
for i = 1, #values, 2 do
  -- The end counts what they keep, one by one. Asked first: all of the call is done, or nothing.
  if values[i] == 'blocked' and values[i + 1] == '1' and h.blocked == '' and call('ZCARD', P .. 'blocked') >= 10000 then
    return {'MANY'}
  end
end
for i = 1, #values, 2 do
  local name, value = values[i], values[i + 1]
  if name == 'delay' then p.delay_set = value
  elseif name == 'cap' then p.cap = tonumber(value) or 0
  elseif name == 'blocked' and value == '1' then
    h.blocked = '1'
    call('ZADD', P .. 'blocked', 'NX', wall, key)
  elseif name == 'blocked' then
    h.blocked = ''
    call('ZREM', P .. 'blocked', key)
  elseif name == 'chance' then
    give_chance(key, h)
    forget_failures(p)
    forget_refusals(p)
    h.said, h.alike, h.demoted = '', 0, 0
  end
end
settle()
return {'OK'}

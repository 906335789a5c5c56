#!lua flags=allow-oom
-- visit.lua: a request to a host of which the caller holds no entry: another host's robots.txt redirected there.
--
-- KEYS[1] state    hash  the crawl's state
-- ARGV[1] epoch    str   the epoch the caller joined with
-- ARGV[2] host     str   host key to ask, with its domain where politeness is by domain (`named`)
-- ARGV[3] word     str   'begin', or 'end' after the request
-- ARGV[4] ms       int   begin: longest wait that is worth it | end: ms since the request ended
-- ARGV[5] number   int   begin: ms that the request may take | end: the reservation that GO named
-- ARGV[6] held     str   '1': the caller holds an entry of the same domain, which does not count against it; missing or
--                        '0': none
--
-- Returns {'GO', wait_ms, reservation}  ask in that time; until the end is told nothing else of the host is started, or
--                                       until the request must be over and the host's delay after it
--         {'WAIT', ms}                  not now: ask again after that long
--         {'NO'}                        the host is blocked or given up, or its domain is not named
--         {'OK'}                        the end is noted; its delay counts from there
--         {'GONE'}
-- Derives `host:<host>`, `domain:<domain>`, `turns:<domain>`, `probes:<domain>`, `schedule`. Cost O(log H). Repeat: a lost GO leaves the host alone as long as a worker that
-- died with it; the end is harmless.
--
-- The due time is the reservation: it needs no lease, because it passes by itself.
-- include _state
-- include _hosts
local key, of = named(ARGV[2])
if not key then return {'NO'} end
local h, ms, number = host(key, of), tonumber(ARGV[4]), tonumber(ARGV[5])
local p, delay = pace_of(h), delay_of(h)
if ARGV[3] == 'end' then
  -- Only what was reserved: another's request, or a host that asked to be left alone, may have moved it since.
  local due = now - math.min(ms, 60000) + delay + 1
  if p.due == number then p.due = due end
  if p.start_due == number then p.start_due = due end
  settle()
  return {'OK'}
end
if h.blocked ~= '' or is_lost(h) then return {'NO'} end
if p.in_flight - (ARGV[6] == '1' and 1 or 0) >= cap_of(p) then
  -- With no delay the host would have its next page under way before anybody could ask again.
  p.due = math.max(p.due, now + 1000)
  settle()
  return {'WAIT', 100}
end
local wait = math.max(0, math.max(p.due, p.start_due, p.blocked_until, h.blocked_until) - now)
if wait > ms then return {'WAIT', wait} end
local reservation = now + wait + number + delay + 1
p.due = reservation
if cap_of(p) > 1 then p.start_due = reservation end
settle()
return {'GO', wait, reservation}

#!lua flags=allow-oom
-- start.lua: may a slot begin its fetch now? Asked only for hosts (or domains) with a cap above 1 and a delay.
--
-- KEYS[1] state    hash  the crawl's state
-- ARGV[1] epoch    str   the epoch the caller joined with
-- ARGV[2] id       str   entry the slot holds
-- ARGV[3] host     str   host key of the task
-- ARGV[4] wait_ms  int   longest wait that is still worth holding a slot for; 'late': the START was had before, its
--                         request goes out only now (connecting took long), and the host's delay counts from here
-- ARGV[5] margin   int   ms added to the delay: between this answer and the request on the wire a worker may stall
--
-- Returns {'START'}        fetch now; the next fetch of this host starts no sooner than its delay from now
--         {'WAIT', ms}     ask again after that long
--         {'BACK', ms}     too long to wait, or the host's circuit is open and others have it in hand: hand the task back;
--                          its host is not due before
--         {'LEASE_LOST'}   the entry is no longer pending
--         {'GONE'}
-- Derives `host:<host>`, `domain:<domain>`, `turns:<domain>`, `probes:<domain>`, `schedule`, `stream:fetch`. Cost O(1). Repeat: after a lost START the host waits one delay more.
-- include _state
-- include _hosts
if #redis.pcall('XPENDING', STREAM, 'workers', ARGV[2], ARGV[2], 1) == 0 then return {'LEASE_LOST'} end
local h = host(ARGV[3])
local p = pace_of(h)
if ARGV[4] == 'late' then
  local due = now + delay_of(h) + 1
  if due > p.start_due then call('HSET', P .. pace_key(ARGV[3], h), 'start_due', due) end
  return {'START'}
end
local due = math.max(p.start_due, p.blocked_until)
local wait = math.max(due, h.blocked_until) - now
if (p.failing ~= '' and p.in_flight > 1) or (h.failing ~= '' and h.in_flight > 1) then
  -- Its circuit opened since they were handed out together: dispatch hands out one of them, the probe.
  p.due = math.max(p.due, due)
  settle()
  return {'BACK', math.max(wait, 0)}
end
if wait > tonumber(ARGV[4]) then
  -- Otherwise the task would be dispatched, asked for and handed back over and over until then.
  p.due = math.max(p.due, due)
  settle()
  return {'BACK', wait}
end
if wait > 0 then return {'WAIT', wait} end
-- Written here alone: settle() would also move the host in the schedule, which a start does not change.
call('HSET', P .. pace_key(ARGV[3], h), 'start_due', now + delay_of(h) + tonumber(ARGV[5]))
return {'START'}

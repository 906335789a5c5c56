#!lua flags=allow-oom
-- addresses.lua: leases of IP addresses, best effort: give some back, then take some.
--
-- KEYS[1] state    hash     the crawl's state
-- ARGV[1] epoch    str      the epoch the caller joined with
-- ARGV[2] given    msgpack  address, member, …: leases that are over
-- ARGV[3] wanted   msgpack  address, member, host key, …: leases to take, at most 250
-- ARGV[4] cap      int      leases of one address at a time
-- ARGV[5] ttl_ms   int      how long a lease lasts that nobody gives back
--
-- Returns {'OK', {ms, …}}  for each wanted one 0 when it is had, or after how long its host should ask again
--         {'GONE'}
-- Derives `address:<address>`, `awaiting:<address>`. Cost O(log n) each. Repeat: harmless, a member has its lease once.
--
-- Whoever waits stands in line by the time at which it asks again, so that a thousand hosts of one address do not all come
-- back at once, and again: at most `cap` of them do in a quarter of a second.
-- include _state
local TURN_MS, WAIT_MAX_MS = 250, 60000
local given, wanted = cmsgpack.unpack(ARGV[2]), cmsgpack.unpack(ARGV[3])
local cap, ttl = tonumber(ARGV[4]), tonumber(ARGV[5])
for i = 1, #given, 2 do call('ZREM', P .. 'address:' .. given[i], given[i + 1]) end
local waits = {}
for i = 1, #wanted, 3 do
  local member, host = wanted[i + 1], wanted[i + 2]
  local leases, line = P .. 'address:' .. wanted[i], P .. 'awaiting:' .. wanted[i]
  call('ZREMRANGEBYSCORE', leases, '-inf', now)
  if call('ZSCORE', leases, member) or call('ZCARD', leases) < cap then
    call('ZADD', leases, now + ttl, member)
    call('PEXPIRE', leases, ttl)
    call('ZREM', line, host)
    waits[#waits + 1] = 0
  else
    call('ZREMRANGEBYSCORE', line, '-inf', now)
    call('ZREM', line, host)
    local wait = math.min(WAIT_MAX_MS, TURN_MS * math.ceil((call('ZCARD', line) + 1) / cap))
    call('ZADD', line, now + wait, host)
    call('PEXPIRE', line, WAIT_MAX_MS)
    waits[#waits + 1] = wait
  end
end
return {'OK', waits}

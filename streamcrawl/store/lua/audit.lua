#!lua flags=no-writes
-- audit.lua: one consistent look at the counters, the structures, and a chunk of hosts recounted.
--
-- KEYS[1] state   hash     the shard's state
-- ARGV[1] epoch   str      the epoch the caller joined with
-- ARGV[2] hosts   msgpack  host keys to recount, at most 200
-- ARGV[3] walked  str      entry id up to which the caller has walked `stream:fetch`; '0-0' when it has not
-- ARGV[4] seen    msgpack  for each of the hosts the ids that it saw up to there: 2,000 in all, or one host
--
-- Returns {'OK', totals as HGETALL, {stream: length, pending, …}, delayed, dead,
--          {host, queued counted, queued found, in_flight counted, in_flight found, scheduled 0|1, should be 0|1,
--           blocked by its hash 0|1, in `blocked` 0|1, given up by its hash 0|1, in `given_up` 0|1, …},
--          {host key with entries after `walked`, …}, {line, entries of it after `walked`, …},
--          {host, domain, in_flight by its domain, in_flight of all of the domain, cap of the domain, domain scheduled
--           0|1, domain should be 0|1, …}}
--            the last one is empty where politeness is by host; else a host is scheduled that stands in its domain's
--            turns, or while it fails among its probes
--         {'BEHIND'}  more than 1,000 entries came after `walked`: walk on, and ask again
--         {'GONE'}
-- Derives all keys of the frontier and `stream:fetch:<sink>`, `stream:<stage>`, `log:<name>`. Reads only: a full server and a
-- replica answer too. Repeat: harmless.
-- include _now
-- include _hosts
-- include _recount
local keys = cmsgpack.unpack(ARGV[2])
local in_stream, lines = entries_of(keys, ARGV[3], cmsgpack.unpack(ARGV[4]))
if not in_stream then return {'BEHIND'} end
local streams, sinks = {}, call('HGET', KEYS[1], 'sinks') or ''
local names = {'stream:fetch'}
for name in string.gmatch(sinks, '[^,]+') do names[#names + 1] = 'stream:fetch:' .. name end
for name in string.gmatch(S.stages or '', '[^,]+') do names[#names + 1] = 'stream:' .. name end
for name in string.gmatch(S.logs or '', '([^=,]+)=') do names[#names + 1] = 'log:' .. name end
for i = 1, #names do
  local length = call('XLEN', P .. names[i])
  streams[#streams + 1] = names[i]
  streams[#streams + 1] = length
  if string.sub(names[i], 1, 4) == 'log:' then
    streams[#streams + 1] = 0
  else
    local pending = redis.pcall('XPENDING', P .. names[i], 'workers')
    streams[#streams + 1] = pending.err and -1 or pending[1]
  end
end
local of_host, of_domain, flat_lines, stream_hosts, is_asked = {}, {}, {}, {}, {}
for line, n in pairs(lines) do flat_lines[#flat_lines + 1] = line flat_lines[#flat_lines + 1] = n end
for i = 1, #keys do
  local key, h, queued = keys[i], host(keys[i]), 0
  is_asked[key] = true
  for level = 0, 3 do queued = queued + call('LLEN', queue_key(key, level)) end
  local row = {key, h.queued, queued, h.in_flight, in_stream[key] or 0,
    call('ZSCORE', P .. place_of(h), key) and 1 or 0, is_ready(key, h) and 1 or 0,
    h.blocked ~= '' and 1 or 0, call('ZSCORE', P .. 'blocked', key) and 1 or 0,
    is_lost(h) and 1 or 0, call('ZSCORE', P .. 'given_up', key) and 1 or 0,
    h.demoted > 0 and 1 or 0, call('ZSCORE', P .. 'demoted', key) and 1 or 0}
  for j = 1, #row do of_host[#of_host + 1] = row[j] end
  if BY_DOMAIN then
    local p = pace_of(h)
    row = {key, h.domain, p['in_flight:' .. key] or 0, p.in_flight, p.cap > 0 and p.cap or CAP,
      call('ZSCORE', P .. 'schedule', h.domain) and 1 or 0, place_in_schedule(h.domain, p) and 1 or 0}
    for j = 1, #row do of_domain[#of_domain + 1] = row[j] end
  end
end
for key in pairs(in_stream) do
  if not is_asked[key] then stream_hosts[#stream_hosts + 1] = key end
end
return {'OK', call('HGETALL', P .. 'totals'), streams, call('ZCARD', P .. 'delayed'), call('XLEN', P .. 'dead'),
  of_host, stream_hosts, flat_lines, of_domain}

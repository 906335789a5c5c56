#!lua flags=allow-oom
-- audit.lua: one consistent look at the counters, the structures, and a chunk of hosts recounted.
--
-- KEYS[1] state  hash     the crawl's state
-- ARGV[1] epoch  str      the epoch the caller joined with
-- ARGV[2] hosts  msgpack  host keys to recount, at most 500
--
-- Returns {'OK', totals as HGETALL, {stream: length, pending, …}, delayed, dead,
--          {host, queued counted, queued found, in_flight counted, in_flight found, scheduled 0|1, should be 0|1, …},
--          {host key of every entry in the fetch stream}, {line, entries of it in the fetch stream, …}}
--         {'GONE'}
-- Derives all keys of the frontier and `stream:fetch:<sink>`. Reads only (but for the clock). Repeat: harmless.
-- include _state
-- include _hosts
local streams, sinks = {}, call('HGET', KEYS[1], 'sinks') or ''
local names = {'stream:fetch'}
for name in string.gmatch(sinks, '[^,]+') do names[#names + 1] = 'stream:fetch:' .. name end
for i = 1, #names do
  local length = call('XLEN', P .. names[i])
  local pending = redis.pcall('XPENDING', P .. names[i], 'workers')
  streams[#streams + 1] = names[i]
  streams[#streams + 1] = length
  streams[#streams + 1] = pending.err and -1 or pending[1]
end
local in_stream, lines, of_host, flat_lines, stream_hosts = {}, {}, {}, {}, {}
for _, entry in ipairs(call('XRANGE', STREAM, '-', '+', 'COUNT', 20000)) do
  local key, line = entry[2][2], kind_of(entry[2][6] or '')
  if not in_stream[key] then stream_hosts[#stream_hosts + 1] = key end
  in_stream[key] = (in_stream[key] or 0) + 1
  lines[line] = (lines[line] or 0) + 1
end
for line, n in pairs(lines) do flat_lines[#flat_lines + 1] = line flat_lines[#flat_lines + 1] = n end
for _, key in ipairs(cmsgpack.unpack(ARGV[2])) do
  local h = host(key)
  local queued = 0
  for level = 0, 3 do queued = queued + call('LLEN', queue_key(key, level)) end
  local should = is_ready(key, h)
  local row = {key, h.queued, queued, h.in_flight, in_stream[key] or 0,
    call('ZSCORE', P .. 'schedule', key) and 1 or 0, should and 1 or 0}
  for i = 1, #row do of_host[#of_host + 1] = row[i] end
end
return {'OK', call('HGETALL', P .. 'totals'), streams, call('ZCARD', P .. 'delayed'), call('XLEN', P .. 'dead'),
  of_host, stream_hosts, flat_lines}

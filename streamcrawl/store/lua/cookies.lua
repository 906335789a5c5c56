#!lua flags=allow-oom
-- cookies.lua: read the cookies of one jar, and change some of them before.
--
-- KEYS[1] state    hash     the crawl's state
-- ARGV[1] epoch    str      the epoch the caller joined with
-- ARGV[2] jar      str      `host:<authority>` or `site:<registrable domain>`
-- ARGV[3] changes  msgpack  what names a cookie, flags, value, how long it lasts in ms (0: no end, -1: it goes), …
--
-- Returns {'OK', {name, flags, value, ms left or 0, …}}  all that have not expired, in the order in which they were set
--         {'GONE'}
-- Derives `cookies:<jar>`. Cost O(cookies of the jar). Repeat: harmless, the last change of a cookie holds.
--
-- A jar is bounded in number and bytes, the cookie that was set longest ago goes first; and it ends 30 days after its last
-- use, because a crawl of a million hosts has as many of them. The wall clock, because cookies name dates.
-- include _state
local COOKIES_MAX, BYTES_MAX, KEPT_MS = 100, 32768, 30 * 86400000
local at, changes = P .. 'cookies:' .. ARGV[2], cmsgpack.unpack(ARGV[3])
local row, jar, order = call('HGETALL', at), {}, {}
local function put(name, expires, set, flags, value)
  jar[name] = {name = name, expires = expires, set = set, flags = flags, value = value}
end
for i = 1, #row, 2 do
  local expires, set, flags, value = string.match(row[i + 1], '^(%d+) (%d+) (%l*) (.*)$')
  put(row[i], tonumber(expires) or 1, tonumber(set) or 0, flags or '', value or '')
end
local last = 0
for _, c in pairs(jar) do last = math.max(last, c.set) end
for i = 1, #changes, 4 do
  local name, flags, value, ms = changes[i], changes[i + 1], changes[i + 2], tonumber(changes[i + 3])
  if ms < 0 then
    if jar[name] then call('HDEL', at, name) end
    jar[name] = nil
  else
    last = last + 1   -- a number, not a time: cookies of one answer keep their order
    put(name, ms > 0 and wall + ms or 0, last, flags, value)
    call('HSET', at, name, string.format('%.0f %.0f %s ', jar[name].expires, last, flags) .. value)
  end
end
local bytes = 0
for name, c in pairs(jar) do
  if c.expires > 0 and c.expires <= wall then
    call('HDEL', at, name)
  else
    order[#order + 1] = c
    bytes = bytes + #name + #c.value
  end
end
table.sort(order, function(a, b) return a.set < b.set or (a.set == b.set and a.name < b.name) end)
local first = 1
while #order - first + 1 > COOKIES_MAX or (bytes > BYTES_MAX and first <= #order) do
  call('HDEL', at, order[first].name)
  bytes = bytes - #order[first].name - #order[first].value
  first = first + 1
end
local found = {}
for i = first, #order do
  local c = order[i]
  found[#found + 1] = c.name
  found[#found + 1] = c.flags
  found[#found + 1] = c.value
  found[#found + 1] = c.expires > 0 and c.expires - wall or 0
end
if #found > 0 then call('PEXPIRE', at, KEPT_MS) end
return {'OK', found}

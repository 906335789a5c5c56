#!lua flags=allow-oom
-- allow.lua: take a grant of pages into this shard, or give back what it does not use.
--
-- KEYS[1] state    hash  the shard's state
-- ARGV[1] epoch    str   the epoch the caller joined with
-- ARGV[2] granted  int   what it is granted in all, by grant.lua; '' when the crawl has no limit (any more)
-- ARGV[3] back     int   pages to give back, as far as they are neither done nor under way
--
-- Returns {'OK', granted, returned, used, queued}  `used` done or under way; `queued` tasks that wait, sitemaps and
--                                              robots.txt among them, 0 when none can be had (blocked hosts, say)
--         {'GONE'}
-- Derives `totals`, `schedule`, `stream:fetch`. Repeat: harmless; a repeated return gives back more of what is not used.
--
-- The shard may fetch granted - returned pages in all: its `pages_max`, at which dispatch stops. Both only grow, so an
-- old answer that comes late can change nothing.
-- include _state
local have = call('HMGET', KEYS[1], 'granted', 'returned')
local t = call('HMGET', P .. 'totals', 'page.done', 'page.streamed', 'page.queued', 'sitemap.queued', 'robots.queued')
for i = 1, #t do t[i] = tonumber(t[i]) or 0 end
-- A shard that may fetch no page dispatches nothing (BUDGET): one with a sitemap and no page would wait for ever.
local used, queued = t[1] + t[2], t[3] + t[4] + t[5]
-- Or they would be granted pages again and again that others wait for.
if call('ZCARD', P .. 'schedule') == 0 and call('XLEN', STREAM) == 0 then queued = 0 end
local granted, returned = tonumber(have[1]) or 0, tonumber(have[2]) or 0
if ARGV[2] == '' then
  call('HDEL', KEYS[1], 'pages_max')
else
  granted = math.max(granted, tonumber(ARGV[2]))
  returned = returned + math.max(0, math.min(tonumber(ARGV[3]), granted - returned - used))
  call('HSET', KEYS[1], 'granted', granted, 'returned', returned, 'pages_max', granted - returned)
end
return {'OK', granted, returned, used, queued}

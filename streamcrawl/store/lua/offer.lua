#!lua
-- offer.lua: offer a chunk of URLs to the frontier: seeds, or links of a page or a sitemap before its commit.
--
-- KEYS[1] state  hash     the crawl's state
-- ARGV[1] epoch  str      the epoch the caller joined with
-- ARGV[2] whose  str      'seeds'   waits at the bounds
--                         'links'   of a page that lies in another shard: nothing of a page ever waits
--                         entry id  the same, of a page of this shard: its entry is the fence
-- ARGV[3] links  msgpack  fingerprint, host key, level, rest, fingerprint, …: at most 250 links, none to only ask
-- ARGV[4] waits  str      '1' for links of a sitemap, which can be had again: they wait (FULL) while half of the
--                         frontier's bound is queued, so that what pages link to still finds room
--
-- Returns {'OK', new, level} `new` of them were not known before and are queued; of seeds `level` says how near the bounds
--                            are, in thousandths of the nearer one (rules/pacing.py); 0 of others
--         {'LEASE_LOST'}    the fence entry is no longer pending
--         {'FULL', queued}  for seeds and sitemaps: the frontier is at its bound, nothing was written
--         {'WAIT', seeds}   for seeds: so many of them are not ended yet, over the mark; nothing was written
--         {'INVALID', n}    the n-th link is malformed, nothing was written
--         {'GONE'}
-- Derives `seen:<bucket>`, `queue:<host>:<level>`, `host:<host>`, `schedule`, `totals`, `stream:fetch`.
-- Cost O(links). Repeat: harmless, everything is known already.
--
-- Not allow-oom: links of a page that cannot be queued wait for the commit, seeds wait for memory. Links of another
-- shard need no fence: discovery only grows, and its own commit decides whether the page has ended.
-- include _state
-- include _hosts
-- include _seen
-- include _links
local whose, level = ARGV[2], 0
if whose == 'seeds' then
  local had = call('HMGET', P .. 'totals', 'page.queued', 'page.streamed', 'page.delayed', 'seed.created', 'seed.ended')
  for i = 1, #had do had[i] = tonumber(had[i]) or 0 end
  -- Workers of version 0.1, beside which a crawl may have been upgraded, end seeds without counting them.
  local queued, seeds = had[1], math.min(had[4] - had[5], had[1] + had[2] + had[3])
  if S.frontier_max and queued >= tonumber(S.frontier_max) then return {'FULL', queued} end
  if S.seeds_max and seeds >= tonumber(S.seeds_max) then return {'WAIT', seeds} end
  level = math.floor(math.max(1000 * queued / (tonumber(S.frontier_max) or math.huge),
    1000 * seeds / (tonumber(S.seeds_max) or math.huge)))
elseif whose ~= 'links' then
  -- By pcall: without its stream or group (flushed) nothing is pending either, and the error has no length.
  if #redis.pcall('XPENDING', STREAM, 'workers', whose, whose, 1) == 0 then return {'LEASE_LOST'} end
end
local _, links = pcall(cmsgpack.unpack, ARGV[3])
local bad = bad_link(links)
if bad > 0 then return {'INVALID', bad} end
if ARGV[4] == '1' and S.frontier_max then
  local queued = tonumber(call('HGET', P .. 'totals', 'page.queued')) or 0
  -- By a lower mark to who only asks: what is read once there is room shall bring more than a few.
  if queued >= tonumber(S.frontier_max) * (#links == 0 and 0.4 or 0.5) then return {'FULL', queued} end
end
local new = 0
for i = 1, #links, 4 do
  if offer(links[i], links[i + 1], links[i + 2], links[i + 3]) then new = new + 1 end
end
settle()
-- Seeds wait at the bound (FULL); links cannot, so a page that passes it stops the crawl.
if whose ~= 'seeds' then stop_when_full() end
flush_seen()
flush_counts()
return {'OK', new, level}

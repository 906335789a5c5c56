#!lua
-- offer.lua: offer a chunk of URLs to the frontier: seeds, or links of a page before its commit.
--
-- KEYS[1] state  hash     the crawl's state
-- ARGV[1] epoch  str      the epoch the caller joined with
-- ARGV[2] fence  str      entry id whose holder offers these links, '' for seeds; no entry, nothing is written
-- ARGV[3] links  msgpack  fingerprint, host key, level, rest, fingerprint, …: at most 250 links
--
-- Returns {'OK', new}       `new` of them were not known before and are queued
--         {'LEASE_LOST'}    the fence entry is no longer pending
--         {'FULL', queued}  for seeds: the frontier is at its bound, nothing was written
--         {'INVALID', n}    the n-th link is malformed, nothing was written
--         {'GONE'}
-- Derives `seen:<bucket>`, `queue:<host>:<level>`, `host:<host>`, `schedule`, `totals`, `stream:fetch`.
-- Cost O(links). Repeat: harmless, everything is known already.
--
-- Not allow-oom: links of a page that cannot be queued wait for the commit, seeds wait for memory.
-- include _state
-- include _hosts
-- include _seen
-- include _links
local is_fenced = ARGV[2] ~= ''
if is_fenced then
  -- By pcall: without its stream or group (flushed) nothing is pending either, and the error has no length.
  if #redis.pcall('XPENDING', STREAM, 'workers', ARGV[2], ARGV[2], 1) == 0 then return {'LEASE_LOST'} end
elseif S.frontier_max then
  local queued = tonumber(call('HGET', P .. 'totals', 'page.queued')) or 0
  if queued >= tonumber(S.frontier_max) then return {'FULL', queued} end
end
local _, links = pcall(cmsgpack.unpack, ARGV[3])
local bad = bad_link(links)
if bad > 0 then return {'INVALID', bad} end
local new = 0
for i = 1, #links, 4 do
  if offer(links[i], links[i + 1], links[i + 2], links[i + 3]) then new = new + 1 end
end
settle()
-- Seeds wait at the bound (FULL); links cannot, so a page that passes it stops the crawl.
if is_fenced then stop_when_full() end
flush_seen()
flush_counts()
return {'OK', new}

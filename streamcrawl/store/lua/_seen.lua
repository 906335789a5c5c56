-- fragment _seen.lua: is a URL new, and if so into its host's queue. Needs _state and _hosts.
--
-- Derives `seen:<bucket>`. Fingerprints are 64-bit integers as decimal text (a Lua number would lose the last bits).
-- A bucket stays an intset (8 B a member) up to 512 members; beyond, Redis turns it into a hash table at 39 to 73 B.
-- So buckets grow by linear hashing: bucket N splits off bucket N - 2^L, at most two splits a call, when the average
-- passes 220: before its split a bucket holds twice the average, and 440 stays three deviations under 512.
local SEEN_AVERAGE = 220
local seen_new, buckets = 0, tonumber(S.seen_buckets) or 1
local low = 1
while low * 2 <= buckets do low = low * 2 end

-- The last 15 digits are uniform and fit a double.
local function hash_of(fp) return math.abs(tonumber(sub(fp, -15))) end
local function bucket_of(hash)
  local b = hash % (low * 2)
  if b >= buckets then b = hash % low end
  return b
end

local function split_bucket()
  local from, into, wide = buckets - low, buckets, low * 2
  local members = call('SMEMBERS', P .. 'seen:' .. from)
  local keep, move = {}, {}
  for i = 1, #members do
    if hash_of(members[i]) % wide == into then move[#move + 1] = members[i] else keep[#keep + 1] = members[i] end
  end
  if #move > 0 then
    call('DEL', P .. 'seen:' .. from)   -- made anew rather than shrunk: a set that was a hash table never turns back
    for i = 1, #keep, 4000 do call('SADD', P .. 'seen:' .. from, unpack(keep, i, math.min(i + 3999, #keep))) end
    for i = 1, #move, 4000 do call('SADD', P .. 'seen:' .. into, unpack(move, i, math.min(i + 3999, #move))) end
  end
  buckets = buckets + 1
  if buckets == low * 2 then low = buckets end
end

local function flush_seen()
  if seen_new == 0 then return end
  local seen = (tonumber(S.seen) or 0) + seen_new
  local was = buckets
  for _ = 1, 2 do if seen > buckets * SEEN_AVERAGE then split_bucket() end end
  if buckets ~= was then call('HSET', KEYS[1], 'seen', seen, 'seen_buckets', buckets)
  else call('HSET', KEYS[1], 'seen', seen) end
end

-- Offer one link, to a page or to a sitemap. `rest` is the stored task without its head: crashes 0 and the discovery time are put in front here.
local SEEN, NEW_HEAD = P .. 'seen:', '[0,' .. wall .. ','
local function offer(fp, key, level, rest)
  if call('SADD', SEEN .. bucket_of(hash_of(fp)), fp) == 0 then return false end
  seen_new = seen_new + 1
  local of
  if BY_DOMAIN then key, of = named(key) end
  local h, line = host(key, of), kind_of_rest(rest)
  count(line .. '.created', 1)
  if is_seed(rest) then count('seed.created', 1) end
  if PAGES_MOST and h.pages >= PAGES_MOST then
    count(line .. '.dropped', 1)
    count(line .. '.dropped.host_budget', 1)
    seed_ended('[0,0,' .. rest)
    return true
  end
  push_tail(key, h, level, NEW_HEAD .. rest)
  count(line .. '.queued', 1)
  return true
end

-- Above the frontier's bound the crawl stops, resumable; what is in flight still brings its links. Before flush_counts.
local function stop_when_full()
  if not S.frontier_max or seen_new == 0 or (S.stopped and S.stopped ~= '') then return end
  local had = call('HMGET', P .. 'totals', 'page.queued', 'sitemap.queued')
  local queued = (tonumber(had[1]) or 0) + (tonumber(had[2]) or 0)
    + (counts['page.queued'] or 0) + (counts['sitemap.queued'] or 0)
  if queued > tonumber(S.frontier_max) then
    S.stopped = 'FRONTIER_FULL'
    call('HSET', KEYS[1], 'stopped', S.stopped, 'stopped_at', wall)
    hold('frontier_full')
  end
end

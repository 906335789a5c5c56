#!lua
-- revisit.lua: make tasks of pages that are due to be visited again, those first that have been so for longest.
--
-- KEYS[1] state  hash  the crawl's state
-- ARGV[1] epoch  str   the epoch the caller joined with
-- ARGV[2] limit  int   tasks at most
--
-- Returns {'OK', made, next_ms}  ms until the next one is due, 0 when more are due already; -1 when there is none, or none
--                                may be made now: no revisits, paused, stopped, over a mark
--         {'GONE'}
-- Derives `revisits`, `queue:<host>:<level>`, `host:<host>`, `schedule`, `giving_up`, `failing`. Cost O(limit).
-- Repeat: harmless, makes the next ones.
--
-- Each is a new task of its line, so the counts balance as for any other. They wait at half of the frontier's bound, as
-- sitemaps do, so that what pages link to still finds room; in `revisits` a page costs no more than in a queue. Not
-- allow-oom: a full server must drain.
-- include _state
-- include _hosts
if not S.revisit_ms or S.paused == '1' or (S.stopped or '') ~= '' or (S.throttled or '') ~= '' then return {'OK', 0, -1} end
local limit = tonumber(ARGV[2])
if S.frontier_max then
  local queued = tonumber(call('HGET', P .. 'totals', 'page.queued')) or 0
  limit = math.min(limit, math.floor(tonumber(S.frontier_max) / 2) - queued)
  if limit <= 0 then return {'OK', 0, -1} end
end
local members, made = call('ZRANGE', P .. 'revisits', '-inf', wall, 'BYSCORE', 'LIMIT', 0, limit), 0
-- With a budget of pages to the head, so the last first: what is new would take the place of a page that has one.
local from, to, step = 1, #members, 1
if PAGES_MOST then from, to, step = #members, 1, -1 end
for i = from, to, step do
  local level, key, rest = string.match(members[i], '^([1-3])|([^|]+)|("page",".*%])$')
  call('ZREM', P .. 'revisits', members[i])
  count('page.created', 1)
  if rest then
    local h, task = host(key), '[0,' .. wall .. ',' .. rest
    -- Given up since its last visit: asked whether it is back, by as many tasks as any other that never answered.
    if is_lost(h) then give_chance(key, h) end
    if is_seed(rest) then count('seed.created', 1) end
    count('page.queued', 1)
    count('page.revisited', 1)
    if PAGES_MOST then
      h.pages = math.max(0, h.pages - 1)
      if h.given_up == 'host_budget' then h.given_up = '' end
      push_head(key, h, level, task)
    else
      push_tail(key, h, level, task)
    end
    made = made + 1
  else
    bury('page', '', '', members[i], 'codec', 'not a page to visit again', '', '')
  end
end
settle()
flush_counts()
local first = call('ZRANGE', P .. 'revisits', 0, 0, 'WITHSCORES')
if #first == 0 then return {'OK', made, -1} end
return {'OK', made, math.max(0, tonumber(first[2]) - wall)}

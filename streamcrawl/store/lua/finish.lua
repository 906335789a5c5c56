#!lua flags=allow-oom
-- finish.lua: has this shard come to rest? Derived from the structures, never from a counter alone.
--
-- KEYS[1] state  hash  the shard's state
-- ARGV[1] epoch  str   the epoch the caller joined with
--
-- Returns {word, created, done, version, paused, stopped, replays}: pages, sitemaps and items created, pages done, what
--         the state says of its settings, and 1 when there are replays to carry out, else 0
--           RUNNING     something is left to do, or more seeds may come
--           ENDED       closed, every structure is empty (but for what blocked hosts have), every line balances
--           LIMIT       pages_max reached, nothing is under way; more could be done
--           STOPPED     stopped for the reason in the state, nothing is under way
--           PAUSED      paused, nothing is under way: a paused crawl has not ended
--           UNFED       nothing is left, but who was to offer more seeds died or was stopped before it had offered all
--           UNBALANCED  nothing is under way, nothing more can be, and the counts disagree: an audit error, not the end
--         {'GONE'}
-- `created` counts replays too: it only grows, so two looks tell whether anything came between.
-- Derives `totals`, the streams, `delayed`, `schedule`, `giving_up`, `blocked`, `host:<host>`, `feeders`, `revisits`, `replays`.
-- Cost O(blocked hosts), at most 10,000, and only when nothing else is left. Repeat: harmless.
-- include _state
local lines = {'page', 'robots', 'sitemap'}
local under_way = call('XLEN', STREAM) + call('ZCARD', P .. 'giving_up')
for name in string.gmatch(call('HGET', KEYS[1], 'sinks') or '', '[^,]+') do
  under_way = under_way + call('XLEN', P .. 'stream:fetch:' .. name)
  lines[#lines + 1] = name
end
local function total(field) return tonumber(call('HGET', P .. 'totals', field)) or 0 end
local items_created = 0
for name in string.gmatch(S.stages or '', '[^,]+') do
  -- What is delayed comes back by itself: a paused crawl, or one at its limit, ends its items all the same.
  under_way = under_way + call('XLEN', P .. 'stream:' .. name) + math.max(0, total(name .. '.delayed'))
  items_created = items_created + total(name .. '.created') + total(name .. '.replayed')
  lines[#lines + 1] = name
end
local replays = call('HLEN', P .. 'replays')
local function answer(word)
  return {word, total('page.created') + total('page.replayed') + total('sitemap.created') + total('sitemap.replayed')
    + items_created, total('page.done'),
    tonumber(call('HGET', KEYS[1], 'version')) or 0, S.paused or '', S.stopped or '', math.min(replays, 1)}
end
-- A replay waits for a crawl that is paused or stopped, and for no budget of pages.
if under_way > 0 or (replays > 0 and S.paused ~= '1' and (S.stopped or '') == '') then return answer('RUNNING') end
local left = call('ZCARD', P .. 'schedule') + call('ZCARD', P .. 'delayed') + replays
-- Pages that are to be visited again: as long as there are any, or with `one_round` those whose time has come.
if S.revisit_ms then
  local is_one = call('HGET', KEYS[1], 'one_round') == '1'
  left = left + (is_one and call('ZCOUNT', P .. 'revisits', '-inf', wall) or call('ZCARD', P .. 'revisits'))
end
local queued, parked = total('page.queued') + total('robots.queued') + total('sitemap.queued'), 0
if left == 0 and queued > 0 then
  for _, key in ipairs(call('ZRANGE', P .. 'blocked', 0, 10000)) do
    parked = parked + (tonumber(call('HGET', P .. 'host:' .. key, 'queued')) or 0)
  end
end
local is_closed = call('HGET', KEYS[1], 'closed') == '1'
if left + queued > parked then
  if S.paused == '1' then return answer('PAUSED') end
  if S.stopped and S.stopped ~= '' then return answer('STOPPED') end
  if S.pages_max and total('page.done') >= tonumber(S.pages_max) then return answer('LIMIT') end
  -- The stream is empty: pages counted in it are lost ones, and dispatch would keep their share of the budget for ever.
  if S.pages_max and total('page.done') + total('page.streamed') >= tonumber(S.pages_max) then
    return answer('UNBALANCED')
  end
  if left == 0 and is_closed then return answer('UNBALANCED') end
  return answer('RUNNING')
end
if not is_closed then
  if S.paused == '1' then return answer('PAUSED') end
  if call('HGET', KEYS[1], 'open') == '1' then return answer('RUNNING') end
  local rows, word = call('HVALS', P .. 'feeders'), 'RUNNING'
  for i = 1, #rows do
    if (tonumber(string.match(rows[i], '^%d+')) or 0) > now then return answer('RUNNING') end
    word = 'UNFED'
  end
  return answer(word)
end
-- What is queued is what blocked hosts keep, not a task less.
if queued ~= parked then return answer('UNBALANCED') end
for i = 1, #lines do
  local line = lines[i]
  local ended = total(line .. '.done') + total(line .. '.dead') + total(line .. '.dropped')
  if total(line .. '.streamed') ~= 0 or total(line .. '.delayed') ~= 0
    or total(line .. '.created') ~= total(line .. '.queued') + ended then
    return answer('UNBALANCED')
  end
end
return answer('ENDED')

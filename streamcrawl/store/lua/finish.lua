#!lua flags=allow-oom
-- finish.lua: has the crawl ended? Derived from the structures, never from a counter alone.
--
-- KEYS[1] state  hash  the crawl's state
-- ARGV[1] epoch  str   the epoch the caller joined with
--
-- Returns {word, created}
--           RUNNING     something is left to do, or more seeds may come
--           ENDED       closed, every structure is empty, every line of the counts balances
--           LIMIT       pages_max reached, nothing is under way; more could be done
--           STOPPED     stopped for the reason in the state, nothing is under way
--           PAUSED      paused, nothing is under way: a paused crawl has not ended
--           UNFED       nothing is left, but who was to offer more seeds died or was stopped before it had offered all
--           UNBALANCED  nothing is under way, nothing more can be, and the counts disagree: an audit error, not the end
--         {'GONE'}
-- Derives `totals`, the streams, `delayed`, `schedule`, `giving_up`, `failing`. Repeat: harmless.
-- include _state
local lines = {'page', 'robots'}
local under_way = call('XLEN', STREAM) + call('ZCARD', P .. 'giving_up')
for name in string.gmatch(call('HGET', KEYS[1], 'sinks') or '', '[^,]+') do
  under_way = under_way + call('XLEN', P .. 'stream:fetch:' .. name)
  lines[#lines + 1] = name
end
local function total(field) return tonumber(call('HGET', P .. 'totals', field)) or 0 end
local created = total('page.created')
if under_way > 0 then return {'RUNNING', created} end
local left = call('ZCARD', P .. 'schedule') + call('ZCARD', P .. 'delayed')
local queued = total('page.queued') + total('robots.queued')
if left + queued > 0 then
  if S.paused == '1' then return {'PAUSED', created} end
  if S.stopped and S.stopped ~= '' then return {'STOPPED', created} end
  if S.pages_max and total('page.done') >= tonumber(S.pages_max) then return {'LIMIT', created} end
  -- The stream is empty: pages counted in it are lost ones, and dispatch would keep their share of the budget for ever.
  if S.pages_max and total('page.done') + total('page.streamed') >= tonumber(S.pages_max) then
    return {'UNBALANCED', created}
  end
  if left == 0 and call('HGET', KEYS[1], 'closed') == '1' then return {'UNBALANCED', created} end
  return {'RUNNING', created}
end
if call('HGET', KEYS[1], 'closed') ~= '1' then
  if S.paused == '1' then return {'PAUSED', created} end
  local row, word = call('HGETALL', KEYS[1]), 'RUNNING'
  for i = 1, #row, 2 do
    if string.sub(row[i], 1, 7) == 'feeder:' then
      if tonumber(row[i + 1]) > now then return {'RUNNING', created} end
      word = 'UNFED'
    end
  end
  return {word, created}
end
for i = 1, #lines do
  local line = lines[i]
  if total(line .. '.queued') ~= 0 or total(line .. '.streamed') ~= 0 or total(line .. '.delayed') ~= 0
    or total(line .. '.created') ~= total(line .. '.done') + total(line .. '.dead') + total(line .. '.dropped') then
    return {'UNBALANCED', created}
  end
end
return {'ENDED', created}

#!lua
-- copy.lua: one step of a replay: entries of a retained log into the stream of a stage or an output, as new items.
--
-- KEYS[1] state  hash  the shard's state
-- ARGV[1] epoch  str   the epoch the caller joined with
-- ARGV[2] id     str   of the replay, which plan.lua began
--
-- Returns {'OK', copied}    and there is more
--         {'FULL', copied}  as many wait as a replay may bring: half of what would hold back those who feed the stream; or
--                           they are held back, and go first
--         {'HELD'}          the crawl is paused or stopped
--         {'ENDED', copied, has_gap} that was the rest; has_gap: 1 when the log had lost entries before they could be sent
--         {'OVER'}          there is no such replay any more: it had ended
--         {'GONE'}
-- Derives `replays`, `replayed`, `log:<name>`, `stream:<stage>`, `stream:fetch:<sink>`, `totals`. Cost: 100 entries, or some
-- 500 kB. Not allow-oom: it adds work. Repeat: harmless: copies and cursor move together, so it copies the next ones.
-- include _state
-- include _items
-- include _replays
local id = ARGV[2]
local stored = call('HGET', P .. 'replays', id)
if not stored then return {'OVER'} end
if S.paused == '1' or (S.stopped or '') ~= '' then return {'HELD'} end
local plan = cjson.decode(stored)
-- Filled up again and again to half of its mark, a stream would never come under a fifth of it: who feeds it would be held
-- back for as long as the replay takes.
watch_marks({plan.target})
if has_name(S.throttled or '', plan.target) then return {'FULL', 0} end
local at, looked, copied = string.match(call('HGET', P .. 'replays', id .. ':at') or ' 0 0', '^(%S*) (%d+) (%d+)$')
if has_gap(id, plan, at) then call('HSET', P .. 'replayed', 'gap:' .. id, 1) end
local most, most_bytes = mark_of(plan.target)
local waiting, bytes = waiting_in(stream_of(plan.target)), bytes_in(plan.target)
local now_at, n, taken, word = walk(plan, at, function(item, url)
  -- One always fits where none waits: a page may be larger than its share of the bytes.
  if waiting > 0 and (most and waiting + 1 > most * 0.4 or most_bytes and bytes + #item > most_bytes * 0.4) then return false end
  enter_new(plan.target, item, url)
  count(plan.target .. '.copied', 1)
  waiting, bytes = waiting + 1, bytes + #item
  return true
end)
looked, copied = looked + n, copied + taken
call('HSET', P .. 'replays', id .. ':at', now_at .. ' ' .. looked .. ' ' .. copied)
if plan.is_missing and now_at ~= '' then
  call('HSET', P .. 'replayed', 'missing:' .. plan.log .. ':' .. base_of(plan.target), now_at)
end
if word == 'END' then end_replay(id, looked, copied) end
watch_marks({plan.target})
flush_counts()
if word == 'END' then return {'ENDED', taken, call('HEXISTS', P .. 'replayed', 'gap:' .. id)} end
return {word == 'FULL' and 'FULL' or 'OK', taken}

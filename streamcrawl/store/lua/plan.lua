#!lua
-- plan.lua: begin a replay of a retained log, which supervisors then carry out (copy.lua); end it early; or only count.
--
-- KEYS[1] state  hash  the shard's state
-- ARGV[1] epoch  str   the epoch the caller joined with
-- ARGV[2] verb   str   'begin' | 'cancel' | 'count'
-- ARGV[3] id     str   of the replay, small letters and digits; with 'count' the entry up to which it was counted, '' first
-- ARGV[4] plan   str   JSON, see _replays.lua; '' to cancel
--
-- Returns {'OK'}                          it is under way, or is not any more
--         {'BUSY', id}                    another replay of this log into this stage is under way, or one of what is missing into another
--                                         version of it
--         {'MANY'}                        20 are under way
--         {'UNKNOWN'}                     there is no such log, or no such stage or output
--         {'COUNTED', at, looked, found, word}  by a step of at most 100 entries; word 'END': that was the last one
--         {'GONE'}
-- Derives `replays`, `replayed`, `log:<name>`. Not allow-oom: it adds work. Repeat: harmless.
-- include _state
-- include _items
-- include _replays
local id = ARGV[3]
if ARGV[2] == 'cancel' then
  local _, looked, copied = string.match(call('HGET', P .. 'replays', id .. ':at') or '', '^(%S*) (%d+) (%d+)$')
  -- Also one that this shard was not told of yet: it will not begin here when it is.
  if call('HEXISTS', P .. 'replayed', 'ended:' .. id) == 0 then end_replay(id, looked or 0, copied or 0) end
  return {'OK'}
end
local plan = cjson.decode(ARGV[4])
local is_target = STAGES[plan.target] or has_name(call('HGET', KEYS[1], 'sinks') or '', plan.target)
if not (LOGS[plan.log] and is_target) then return {'UNKNOWN'} end
local begin = plan.is_missing and call('HGET', P .. 'replayed', 'missing:' .. plan.log .. ':' .. base_of(plan.target)) or ''
if ARGV[2] == 'count' then
  local at, looked, found, word = walk(plan, id == '' and begin or id, function() return true end)
  return {'COUNTED', at, looked, found, word}
end
if call('HEXISTS', P .. 'replays', id) == 1 or call('HEXISTS', P .. 'replayed', 'ended:' .. id) == 1 then return {'OK'} end
local rows, n = call('HGETALL', P .. 'replays'), 0
for i = 1, #rows, 2 do
  if not string.find(rows[i], ':', 1, true) then
    n = n + 1
    local other = cjson.decode(rows[i + 1])
    -- What is missing has one cursor for all versions of a stage: of two walks the one behind would take it back.
    local is_same_walk = plan.is_missing and other.is_missing and base_of(other.target) == base_of(plan.target)
    if other.log == plan.log and (other.target == plan.target or is_same_walk) then return {'BUSY', rows[i]} end
  end
end
if n >= 20 then return {'MANY'} end
call('HSET', P .. 'replays', id, ARGV[4], id .. ':at', begin .. ' 0 0')
call('HSET', P .. 'replayed', 'gone:' .. id, newest_gone(plan.log))
return {'OK'}

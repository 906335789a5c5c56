#!lua flags=allow-oom
-- replay.lua: send dead letters back: tasks through the queues of their hosts, items into the streams of their stages.
--
-- KEYS[1] state    hash     the shard's state
-- ARGV[1] epoch    str      the epoch the caller joined with
-- ARGV[2] letters  msgpack  id of the dead letter, host key, level, task as it is to be queued, …: at most 250;
--                            of an item '', '', and for the task 'keep' (its attempts count on) or ''
--
-- Returns {'OK', {word, …}}, a word for each letter:
--           QUEUED   it is in its host's queue, or its stage's stream, and no dead letter any more
--           ASKED    it was a robots task: its host's gate asks for robots.txt again by itself
--           GONE     there is no such dead letter (any more)
--           INVALID  what is to be queued is no task, or of another host or line than the letter; nothing was written
--         {'GONE'}
-- Derives `dead`, `queue:<host>:<level>`, `host:<host>`, `schedule`, `failing`, `giving_up`, `totals`,
-- `stream:<stage>`.
-- Repeat: harmless, says GONE for what an earlier call has sent back.
--
-- A host that was given up gets another chance: otherwise its tasks would be buried again at once. One that only fails
-- just now keeps its back-off: a long replay would ask it without end, and never give it up.
-- include _state
-- include _hosts
-- include _items
local letters, words = cmsgpack.unpack(ARGV[2]), {}
for i = 1, #letters do letters[i] = tostring(letters[i]) end
local function replayed(id, key, level, task)
  if not is_id(id) then return 'INVALID' end
  local f = letter_of(id)
  if not f then return 'GONE' end
  if (f.stage or 'fetch') ~= 'fetch' then
    -- The item of a letter never changes, so the letter's own is sent.
    if not STAGES[f.stage] then return 'INVALID' end
    leave_dead(id, f)
    enter_item(f.stage, f.task, f.url or '', task == 'keep' and f.attempt or 1, 0)
    count(f.stage .. '.replayed', 1)
    return 'QUEUED'
  end
  local line = kind_of(f.task)
  if f.host ~= key or not string.find(key, '^%l[%w+.-]*://[^/|]+$') or kind_of(task) ~= line
    or not string.find(task, '^%[%d+,%d+,"%l+",.*%]$') or not string.find(level, line == 'robots' and '^0$' or '^[1-3]$') then
    return 'INVALID'
  end
  leave_dead(id, f)
  local h = host(key)
  if h.given_up ~= '' then give_chance(key, h) end
  if line == 'robots' then
    -- Not queued by itself: the gate may have a task of its own under way, and two would fetch it twice.
    count('robots.dropped', 1)
    count('robots.dropped.replayed', 1)
    return 'ASKED'
  end
  seed_ended(task, -1)
  push_tail(key, h, level, task)
  count(line .. '.queued', 1)
  count(line .. '.replayed', 1)
  return 'QUEUED'
end
for i = 1, #letters, 4 do
  words[#words + 1] = replayed(letters[i], letters[i + 1], letters[i + 2], letters[i + 3])
end
settle()
flush_counts()
return {'OK', words}

#!lua flags=allow-oom
-- due.lua: bring delayed tasks whose time has come back to the head of their host's queue, items into their stream.
--
-- KEYS[1] state  hash  the crawl's state
-- ARGV[1] epoch  str   the epoch the caller joined with
-- ARGV[2] limit  int   tasks at most
--
-- Returns {'OK', moved, next_ms}  ms until the next one is due, 0 when more are due already, -1 when none is delayed
--         {'GONE'}
-- Derives `delayed`, `queue:<host>:<level>`, `host:<host>`, `schedule`, `stream:<stage>`. Repeat: harmless.
-- include _state
-- include _hosts
-- include _items
local function is_item(member)
  local stage, attempt, crashes, size, rest = string.match(member, '^stage|([^|]+)|%d+%-%d+|(%d+)|(%d+)|(%d+)|(.*)$')
  if not stage or not STAGES[stage] then return false end
  enter_item(stage, string.sub(rest, tonumber(size) + 1), string.sub(rest, 1, tonumber(size)), attempt, crashes)
  count(stage .. '.delayed', -1)
  return true
end
local members = call('ZRANGE', P .. 'delayed', '-inf', now, 'BYSCORE', 'LIMIT', 0, tonumber(ARGV[2]))
for i = 1, #members do
  local level, key, task = string.match(members[i], '^fetch|([0-3])|([^|]+)|(.*)$')
  call('ZREM', P .. 'delayed', members[i])
  if task then
    push_head(key, host(key), level, task)
    local line = kind_of(task)
    count(line .. '.delayed', -1)
    count(line .. '.queued', 1)
  elseif not is_item(members[i]) then
    -- Not written by a commit. An error here would keep every other task waiting, for ever.
    count('page.created', 1)
    bury('page', '', '', members[i], 'codec', 'not a delayed task', '', '')
  end
end
settle()
flush_counts()
local first = call('ZRANGE', P .. 'delayed', 0, 0, 'WITHSCORES')
if #first == 0 then return {'OK', #members, -1} end
return {'OK', #members, math.max(0, tonumber(first[2]) - now)}

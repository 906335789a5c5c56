#!lua flags=allow-oom
-- purge.lua: remove tasks from a host's queue: they are dropped, by the name 'purged', and stay seen.
--
-- KEYS[1] state  hash     the shard's state
-- ARGV[1] epoch  str      the epoch the caller joined with
-- ARGV[2] host   str      host key
-- ARGV[3] level  str      1 to 3: robots tasks are not for purging
-- ARGV[4] count  int      tasks to take from the head, at most 500
-- ARGV[5] which  msgpack  those of them to remove, as they are stored; 'all' for every one
--
-- Returns {'OK', purged, kept}  taken from the head: removed, and put back at the tail
--         {'GONE'}
-- Derives `queue:<host>:<level>`, `host:<host>`, `schedule`, `giving_up`, `totals`. Cost O(count).
-- Repeat: harmless, takes the next ones and removes of them what is named.
--
-- From the head to the tail, because a removal in the middle of a list of millions costs its length each time. Once
-- round, the order is what it was.
-- include _state
-- include _hosts
local key, level = ARGV[2], ARGV[3]
local which = cmsgpack.unpack(ARGV[5])
local remove = {}
if type(which) == 'table' then for i = 1, #which do remove[which[i]] = true end end
if not string.find(level, '^[1-3]$') then return {'OK', 0, 0} end
local tasks = call('LPOP', queue_key(key, level), math.min(tonumber(ARGV[4]), 500)) or {}
local h, purged, kept = host(key), 0, {}
for i = 1, #tasks do
  if which == 'all' or remove[tasks[i]] then
    purged = purged + 1
    seed_ended(tasks[i])
    count(kind_of(tasks[i]) .. '.queued', -1)
    count(kind_of(tasks[i]) .. '.dropped', 1)
    count(kind_of(tasks[i]) .. '.dropped.purged', 1)
  else
    kept[#kept + 1] = tasks[i]
  end
end
if #kept > 0 then call('RPUSH', queue_key(key, level), unpack(kept)) end
h.queued = h.queued - purged
settle()
flush_counts()
return {'OK', purged, #kept}

#!lua flags=allow-oom
-- queue_beat.lua: renew the leases of one member of a TaskQueue, and say that it lives.
--
-- KEYS[1] state   hash     the queue's state
-- ARGV[1] epoch   str      the epoch the caller joined with
-- ARGV[2] member  str      who holds the entries
-- ARGV[3] info    str      JSON for people: pid, machine
-- ARGV[4] held    msgpack  level, {id, …}, …
--
-- Returns {'OK', {level, id, …}, last, lease_ms}  entries that are no longer its own; the number of the last item that the
--                                                store has of it; the lease in force
--         {'GONE'}
-- Derives `stream:<level>`, `members`, `puts`. Cost O(ids). Repeat: harmless.
--
-- XCLAIM without FORCE renews only what is pending, and an entry is never handed to another in place, so a late beat
-- cannot steal anything back. JUSTID, because a plain XCLAIM would send every payload back.
-- include _queue
local held, lost = cmsgpack.unpack(ARGV[4]), {}
for n = 1, #held, 2 do
  local level, ids = held[n], held[n + 1]
  for i = 1, #ids, 1000 do
    local query = {'XCLAIM', stream_of(level), 'workers', ARGV[2], 0}
    for j = i, math.min(i + 999, #ids) do query[#query + 1] = ids[j] end
    query[#query + 1] = 'JUSTID'
    local renewed, is_held = redis.pcall(unpack(query)), {}
    if not renewed.err then for j = 1, #renewed do is_held[renewed[j]] = true end end
    for j = i, math.min(i + 999, #ids) do
      if not is_held[ids[j]] then
        lost[#lost + 1] = level
        lost[#lost + 1] = ids[j]
      end
    end
  end
end
call('HSET', P .. 'members', ARGV[2], wall .. ' ' .. ARGV[3])
local kept = string.match(call('HGET', P .. 'puts', ARGV[2]) or '', '^(.*) %d+$')
if kept then call('HSET', P .. 'puts', ARGV[2], kept .. ' ' .. wall) end
return {'OK', lost, tonumber(string.match(kept or '', '^%d+')) or 0, LEASE}

#!lua flags=allow-oom
-- queue_reclaim.lua: take back what was not renewed for a whole lease: its process or machine died, or was cut off.
--
-- KEYS[1] state  hash  the queue's state
-- ARGV[1] epoch  str   the epoch the caller joined with
-- ARGV[2] limit  int   entries of each level at most
--
-- Returns {'OK', back}  so many were taken back, those that are dead now among them
--         {'HOLD', ms}  the last tick is too long ago (outage, sleep, clock jump): for that long nobody loses a lease
--         {'GONE'}
-- Derives `stream:<level>`, `dead`, `members`, `puts`, `settles`, `totals`. Cost O(pending + members). Repeat: harmless.
-- include _queue
-- include _lease
local held_ms = 0
for level = 0, LEVELS - 1 do held_ms = math.max(held_ms, hold_ms(stream_of(level), tostring(level), LEASE)) end
if held_ms > 0 then return {'HOLD', held_ms} end

local back = 0
for level = 0, LEVELS - 1 do
  local stream = stream_of(level)
  local rows = redis.pcall('XPENDING', stream, 'workers', 'IDLE', LEASE, '-', '+', tonumber(ARGV[2]))
  if rows.err then
    waiting_in(stream)   -- makes the group again
    rows = {}
  end
  for _, row in ipairs(rows) do
    local f = leave(level, row[1])
    if f then
      f.crashes = f.crashes + 1
      back = back + 1
      count('crashed', 1)
      if f.crashes >= tonumber(S.crashes_max) then
        bury(level, f, 'crashed', 'its process died or was cut off ' .. f.crashes .. ' times with this item out')
      else
        enter(level, f)
      end
    end
  end
  for _, row in ipairs(call('XINFO', 'CONSUMERS', stream, 'workers')) do
    -- Only without pending rows, which DELCONSUMER would forget; who lives after all has its name again with its next read.
    if row[6] >= 3 * LEASE and #call('XPENDING', stream, 'workers', '-', '+', 1, row[2]) == 0 then
      call('XGROUP', 'DELCONSUMER', stream, 'workers', row[2])
    end
  end
end
local members = call('HGETALL', P .. 'members')
for i = 1, #members, 2 do
  if wall - tonumber(string.match(members[i + 1], '^%d+')) > 3 * LEASE then call('HDEL', P .. 'members', members[i]) end
end
-- What a member that is cut off may still ask about: a day, then it is one that died.
local puts = call('HGETALL', P .. 'puts')
for i = 1, #puts, 2 do
  if wall - tonumber(string.match(puts[i + 1], '(%d+)$')) > 86400000 then
    call('HDEL', P .. 'puts', puts[i])
    call('HDEL', P .. 'settles', puts[i])
  end
end
flush_counts()
return {'OK', back}

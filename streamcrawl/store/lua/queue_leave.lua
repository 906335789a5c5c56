#!lua flags=allow-oom
-- queue_leave.lua: a member of a TaskQueue ends, and forgets what it was told.
--
-- KEYS[1] state   hash  the queue's state
-- ARGV[1] epoch   str   the epoch the caller joined with
-- ARGV[2] member  str   who leaves
--
-- Returns {'OK', pending}  entries that stay under its name, until their lease is over
--         {'GONE'}
-- Derives `members`, `puts`, `settles`, `stream:<level>`. Repeat: harmless.
-- include _queue
call('HDEL', P .. 'members', ARGV[2])
call('HDEL', P .. 'puts', ARGV[2])
call('HDEL', P .. 'settles', ARGV[2])
local pending = 0
for level = 0, LEVELS - 1 do
  local rows = redis.pcall('XPENDING', stream_of(level), 'workers', '-', '+', 1, ARGV[2])
  if rows.err then waiting_in(stream_of(level))
  elseif #rows == 0 then call('XGROUP', 'DELCONSUMER', stream_of(level), 'workers', ARGV[2])
  else pending = pending + #rows end
end
return {'OK', pending}

#!lua flags=allow-oom
-- queue_close.lua: close a TaskQueue, or open it again.
--
-- KEYS[1] state   hash  the queue's state
-- ARGV[1] epoch   str   the epoch the caller joined with
-- ARGV[2] closed  str   '1' | '0'
--
-- Returns {'OK', left}  unsettled items
--         {'GONE'}
-- Derives the streams. Repeat: harmless.
-- include _queue
call('HSET', KEYS[1], 'closed', ARGV[2])
return {'OK', unsettled()}

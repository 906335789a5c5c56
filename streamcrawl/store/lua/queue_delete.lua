#!lua flags=allow-oom
-- queue_delete.lua: remove a TaskQueue with all that is in it.
--
-- KEYS[1] state  hash  the queue's state
-- ARGV[1] epoch  str   the epoch the caller joined with
--
-- Returns {'OK'}
--         {'GONE'}
-- Derives every key. Cost O(levels): Redis frees the memory beside its other work (UNLINK). Repeat: says GONE.
-- include _queue
for level = 0, LEVELS - 1 do call('UNLINK', stream_of(level)) end
for _, name in ipairs({'delayed', 'dead', 'totals', 'members', 'puts', 'settles', 'ids'}) do call('UNLINK', P .. name) end
call('UNLINK', KEYS[1])
return {'OK'}

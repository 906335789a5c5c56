#!lua
-- dispatch.lua: move tasks of due hosts into the work stream; any worker may, there is no leader.
--
-- KEYS[1] state  hash  the crawl's state
-- ARGV[1] epoch  str   the epoch the caller joined with
-- ARGV[2] limit  int   tasks to move at most
--
-- Returns {'OK', moved, next_ms, word}   see _dispatch for the words; next_ms -1 when nothing is scheduled
--         {'GONE'}
-- Derives `schedule`, `host:<host>`, `queue:<host>:<level>`, `totals`, `stream:fetch`. Cost O(limit).
-- Repeat: harmless, moves what is due by then; caps, delays and marks hold whoever calls and how often.
--
-- Not allow-oom: a full server must drain, so dispatch stops first.
-- include _state
-- include _hosts
-- include _items
-- include _stream
-- include _dispatch
local moved, next_ms, word = dispatch(tonumber(ARGV[2]))
flush_counts()
return {'OK', moved, next_ms, word}

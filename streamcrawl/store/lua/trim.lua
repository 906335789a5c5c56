#!lua flags=allow-oom
-- trim.lua: remove the oldest entries of retained logs that are past their time, over their bytes, or in the way.
--
-- KEYS[1] state  hash  the shard's state
-- ARGV[1] epoch  str   the epoch the caller joined with
-- ARGV[2] limit  int   entries at most, of each log
-- ARGV[3] full   str   '1': the server is at its memory mark, so any of them; else ''
--
-- Returns {'OK', removed, left}  left: 1 when there may be more to remove now
--         {'GONE'}
-- Derives `log:<name>`, `totals`. Cost O(limit). Repeat: harmless, removes the next ones.
-- include _state
-- include _logs
local removed, left = 0, 0
for name in pairs(LOGS) do
  local n, has_more = trim(name, tonumber(ARGV[2]), ARGV[3] == '1')
  removed = removed + n
  if has_more then left = 1 end
end
flush_counts()
return {'OK', removed, left}

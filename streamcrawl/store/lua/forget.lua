#!lua flags=allow-oom
-- forget.lua: remove dead letters for good: their pages are dropped, by the name 'purged'.
--
-- KEYS[1] state  hash     the shard's state
-- ARGV[1] epoch  str      the epoch the caller joined with
-- ARGV[2] ids    msgpack  ids of dead letters, at most 500
--
-- Returns {'OK', forgotten} · {'GONE'}
-- Derives `dead`, `totals`. Repeat: harmless, forgotten is 0.
-- include _state
-- include _hosts
local forgotten = 0
for _, id in ipairs(cmsgpack.unpack(ARGV[2])) do
  local f = letter_of(id)
  if f then
    local line = leave_dead(id, f)
    count(line .. '.dropped', 1)
    count(line .. '.dropped.purged', 1)
    forgotten = forgotten + 1
  elseif is_id(id) then
    call('XDEL', P .. 'dead', id)   -- not a letter of ours: it was never counted
  end
end
flush_counts()
return {'OK', forgotten}

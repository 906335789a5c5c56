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
  local entry = call('XRANGE', P .. 'dead', id, id)[1]
  if entry then
    local f = {}
    for i = 1, #entry[2], 2 do f[entry[2][i]] = entry[2][i + 1] end
    local line = kind_of(f.task or '')
    call('XDEL', P .. 'dead', id)
    count(line .. '.dead', -1)
    count(line .. '.dead.' .. f.reason, -1)
    count(line .. '.dropped', 1)
    count(line .. '.dropped.purged', 1)
    forgotten = forgotten + 1
  end
end
flush_counts()
return {'OK', forgotten}

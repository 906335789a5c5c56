#!lua flags=allow-oom
-- grant.lua: how many pages another shard may fetch of the crawl's `--max-pages`; kept in the first shard.
--
-- KEYS[1] state     hash  the state of the first shard
-- ARGV[1] epoch     str   the epoch the caller joined with
-- ARGV[2] shard     int   which shard asks
-- ARGV[3] granted   int   what it was granted so far, as it knows it
-- ARGV[4] returned  int   what it has given back so far
-- ARGV[5] used      int   pages it has done or under way
-- ARGV[6] wanted    int   how many more it could use now
-- ARGV[7] budget    int   pages in all, `--max-pages`
--
-- Returns {'OK', granted, pool}  what it is granted in all from now on, and what is left for everybody; below 0 when the
--                                budget was lowered
--         {'GONE'}
-- Derives `grants`. Repeat: harmless: `granted` and `returned` only grow, and what was granted and has not arrived is
-- granted again, not once more.
-- include _state
local G, shard = P .. 'grants', ARGV[2]
local known, returned = tonumber(ARGV[3]), tonumber(ARGV[4])
local have = call('HMGET', G, 'granted:' .. shard, 'returned:' .. shard)
local granted = math.max(tonumber(have[1]) or 0, known, returned + tonumber(ARGV[5]))
returned = math.max(tonumber(have[2]) or 0, returned)
call('HSET', G, 'granted:' .. shard, granted, 'returned:' .. shard, returned)
local pool, rows = tonumber(ARGV[7]), call('HGETALL', G)
for i = 1, #rows, 2 do
  local sign = string.sub(rows[i], 1, 8) == 'granted:' and -1 or 1
  pool = pool + sign * tonumber(rows[i + 1])
end
local more = math.min(pool, known + tonumber(ARGV[6]) - granted)
if more > 0 then
  granted, pool = granted + more, pool - more
  call('HSET', G, 'granted:' .. shard, granted)
end
return {'OK', granted, pool}

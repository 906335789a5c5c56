#!lua flags=allow-oom
-- delete.lua: one step in the deletion of a shard, unless its crawl was begun anew meanwhile.
--
-- KEYS[1] state  hash  the shard's state
-- ARGV[1] epoch  str   the shard's when its deletion began; '' when it had none any more
-- ARGV[2..] key  str   what follows the prefix, of keys to delete: at most 500
--
-- Returns {'OK', deleted}  the epoch is gone, and so many keys with it
--         {'BEGUN'}        somebody else has ended the deletion and begun the crawl anew: nothing was written
-- Derives the keys that are named. Repeat: harmless, deleted is 0.
--
-- Two may delete the same crawl at once (`--fresh` on two machines), and the slower one must not take the new crawl's
-- queues from under it.
local P = string.sub(KEYS[1], 1, -6)
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if epoch and epoch ~= ARGV[1] then return {'BEGUN'} end
redis.call('HDEL', KEYS[1], 'epoch')
local deleted = 0
for n = 2, #ARGV do deleted = deleted + redis.call('UNLINK', P .. ARGV[n]) end
return {'OK', deleted}

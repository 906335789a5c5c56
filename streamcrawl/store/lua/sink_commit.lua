#!lua flags=allow-oom
-- sink_commit.lua: acknowledge a batch that is written and durable, all of it or nothing.
--
-- KEYS[1] state     hash     the crawl's state
-- ARGV[1] epoch     str      the epoch the caller joined with
-- ARGV[2] sink      str      its name
-- ARGV[3] writer    int      writer epoch of sink_open
-- ARGV[4] expected  int      offset in bytes before the batch
-- ARGV[5] offset    int      offset after it
-- ARGV[6] ids       msgpack  entry ids of the batch, at most 1,000
-- ARGV[7] server    str      run_id of the server that said the offsets of all shards; '' leaves it unasked
-- ARGV[8] part      str      which part of the output that offset lies in: 'number start'; '' for the first
-- ARGV[9] size      int      bytes of the records of the batch
--
-- Returns {'DONE'}                      acknowledged, deleted, offset stored
--         {'LEASE_LOST', {id, …}}       these are no longer pending; nothing was written
--         {'OFFSET_MISMATCH', stored}   nothing was written: truncate to `stored` and write again
--         {'RESTARTED'}                 the server is another process: other shards' offsets may have gone back, and
--                                       this batch lies behind theirs; nothing was written
--         {'REPLACED'}                  another writer took over: stop writing
--         {'GONE'}
-- Derives `offsets`, `stream:fetch:<sink>`, `totals`. Repeat: says OFFSET_MISMATCH with the new offset, or LEASE_LOST
-- when expected = offset; the caller compares the stored offset with its own before it truncates.
-- include _state
-- include _items
-- include _process
local sink, stream = ARGV[2], P .. 'stream:fetch:' .. ARGV[2]
local have = call('HMGET', P .. 'offsets', sink .. ':writer', sink .. ':offset')
if have[1] ~= ARGV[3] then return {'REPLACED'} end
if is_other_process(ARGV[7]) then return {'RESTARTED'} end
if (tonumber(have[2]) or 0) ~= tonumber(ARGV[4]) then return {'OFFSET_MISMATCH', tonumber(have[2]) or 0} end
local ids = cmsgpack.unpack(ARGV[6])
local lost, is_whole = {}, #ids > 0
if is_whole then
  -- Nearly always the batch is what is pending from its first entry to its last: one question instead of a thousand.
  local rows = redis.pcall('XPENDING', stream, 'workers', ids[1], ids[#ids], #ids)
  for i = 1, #ids do is_whole = is_whole and rows[i] ~= nil and rows[i][1] == ids[i] end
end
for i = 1, is_whole and 0 or #ids do
  if #redis.pcall('XPENDING', stream, 'workers', ids[i], ids[i], 1) == 0 then lost[#lost + 1] = ids[i] end
end
if #lost > 0 then return {'LEASE_LOST', lost} end
local done = 0
if #ids > 0 then
  done = call('XACK', stream, 'workers', unpack(ids))
  call('XDEL', stream, unpack(ids))
end
call('HSET', P .. 'offsets', sink .. ':offset', ARGV[5])
if ARGV[8] ~= '' then call('HSET', P .. 'offsets', sink .. ':part', ARGV[8]) end
count(sink .. '.done', done)
count(sink .. '.streamed', -done)
local bytes = bytes_in(sink)
-- What was deleted by hand, or written by a worker that counts no bytes, is forgotten once the stream is empty.
local left = call('XLEN', stream) == 0 and 0 or math.max(0, bytes - tonumber(ARGV[9]))
count(sink .. '.bytes', left - bytes)
if S.throttled and S.throttled ~= '' then watch_marks({sink}) end
flush_counts()
return {'DONE'}

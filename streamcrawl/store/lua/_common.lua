-- fragment _common.lua: counters, ids of entries and what waits in a stream. Needs `call` and the prefix P; part of _state
-- and _queue.
local counts = {}
local function count(field, n) counts[field] = (counts[field] or 0) + n end
local function flush_counts()
  for field, n in pairs(counts) do
    if n ~= 0 then call('HINCRBY', P .. 'totals', field, n) end
  end
  counts = {}
end

-- Is it the id of a stream entry? Redis raises at anything else, longer numbers than 64 bits included, and an error in
-- the middle of a batch leaves half of it written.
local function is_id(id)
  if type(id) ~= 'string' then return false end
  if #id <= 20 and string.find(id, '^%d+%-%d+$') then return true end   -- neither part can be too long
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return ms ~= nil and #ms <= 19 and #seq <= 19
end

-- Entries of a stream that nobody has read yet. XLEN - pending is exact; `lag` is not (it is nil in normal life).
local function waiting_in(stream)
  local pending = redis.pcall('XPENDING', stream, 'workers')
  if pending.err then
    -- The stream or its group was lost (flushed, failed over): make it again at 0, so that nothing is skipped.
    redis.pcall('XGROUP', 'CREATE', stream, 'workers', '0', 'MKSTREAM')
    return call('XLEN', stream)
  end
  return call('XLEN', stream) - pending[1]
end

-- fragment _recount.lua: the entries of hosts in the work stream at one instant, however long it is. Needs _state.
--
-- The caller walks the stream in parts before it asks, and brings along how far it came and which entries it saw of each
-- host. Ids only grow: up to there nothing can have come since, so what there is now is what it saw and is still there.
-- What came later is read here, as long as it is little.
--
-- Returns host key -> entries, and line -> entries of what was read here; nil when the caller is too far behind.
local TAIL_MAX = 1000
local function entries_of(keys, walked, seen)
  local tail = call('XRANGE', STREAM, '(' .. walked, '+', 'COUNT', TAIL_MAX + 1)
  if #tail > TAIL_MAX then return nil end
  local entries, lines = {}, {}
  for i = 1, #tail do
    local f = {}
    for j = 1, #tail[i][2], 2 do f[tail[i][2][j]] = tail[i][2][j + 1] end
    local key, line = f.host or '', kind_of(f.task or '')
    entries[key] = (entries[key] or 0) + 1
    lines[line] = (lines[line] or 0) + 1
  end
  for i = 1, #keys do
    local ids, key = seen[i] or {}, keys[i]
    for j = 1, #ids do
      if #call('XRANGE', STREAM, ids[j], ids[j]) == 1 then entries[key] = (entries[key] or 0) + 1 end
    end
  end
  return entries, lines
end

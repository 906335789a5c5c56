-- fragment _sinks.lua: how much waits in the stream of a sink, by records and by bytes. Needs _state.
--
-- `<sink>.bytes` of the totals is the size of the records in its stream: added by commit.lua, taken by sink_commit.lua.
local function bytes_in(sink)
  local field = sink .. '.bytes'
  return (tonumber(call('HGET', P .. 'totals', field)) or 0) + (counts[field] or 0)
end

-- How full is it, by the mark that it is nearer to? 1 is the mark.
local function fullness(stream, sink)
  local by_count = S.sink_max and waiting_in(stream) / tonumber(S.sink_max) or 0
  return math.max(by_count, S.sink_max_bytes and bytes_in(sink) / tonumber(S.sink_max_bytes) or 0)
end

-- fragment _logs.lua: retained logs, which lie beside the work streams: nobody reads them but replays. Needs _state.
--
-- The state's `logs` says how long each keeps what is written to it: name=ms, …; of the pages that a stage parses
-- (`fetched.<stage>`) `keep_bodies` does. An entry has `item` (`["Type;Base",item,depth]`: all types by which it may be
-- taken, the nearest first), `url`, `line` (that gave it, with its version), `to` (names of what it was sent to, with
-- commas between) and `result` (1: no stage took it). Its id is the time.
-- `log:<name>.created` = in the log + `.expired` + `.trimmed` (before its time, for bytes or memory); `.bytes` is its size.
-- Derives `log:<name>`, `totals`.
local LOGS, LOG_ENTRY_BYTES = {}, 64   -- what an entry costs beside its texts, so that many small ones are bounded too
for name, ms in string.gmatch(S.logs or '', '([^=,]+)=(%d+)') do LOGS[name] = tonumber(ms) end
local log_limits
local function limits()
  if not log_limits then
    local v = call('HMGET', KEYS[1], 'keep_bodies', 'log_bytes', 'log_share')
    log_limits = {bodies = tonumber(v[1]) or 0, bytes = tonumber(v[2]) or tonumber(v[3]) or 64000000}
  end
  return log_limits
end
local function kept_ms(name)
  if string.sub(name, 1, 8) == 'fetched.' then return limits().bodies end
  return LOGS[name] or 0
end
local function log_size(f) return #(f.item or '') + #(f.url or '') + LOG_ENTRY_BYTES end
local function fields_of(entry)
  local f = {}
  for i = 1, #entry[2], 2 do f[entry[2][i]] = entry[2][i + 1] end
  return f
end

local written = {}
local function keep(name, item, url, line, to, result)
  count('log:' .. name .. '.created', 1)
  -- The log gives way first: here it would take the memory by which the rest is to drain.
  if S.stopped == 'MEMORY_FULL' then return count('log:' .. name .. '.trimmed', 1) end
  call('XADD', P .. 'log:' .. name, '*', 'item', item, 'url', url, 'line', line, 'to', to, 'result', result)
  count('log:' .. name .. '.bytes', #item + #url + LOG_ENTRY_BYTES)
  written[name] = (written[name] or 0) + 1
end

-- Remove the oldest entries that are past their time, or over the bytes (with `is_full` any): at most `most`, and some
-- 1 MB. Returns how many were removed, and whether it was stopped by that.
local function trim(name, most, is_full)
  local key, counter, removed, read = P .. 'log:' .. name, 'log:' .. name, 0, 0
  local bytes = (tonumber(call('HGET', P .. 'totals', counter .. '.bytes')) or 0) + (counts[counter .. '.bytes'] or 0)
  while removed < most and read < 1000000 do
    local entry = call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
    if not entry then return removed, false end
    local is_old = wall - tonumber(string.match(entry[1], '^%d+')) >= kept_ms(name)
    if not (is_old or is_full or bytes > limits().bytes) then return removed, false end
    local size = log_size(fields_of(entry))
    call('XDEL', key, entry[1])
    count(counter .. (is_old and '.expired' or '.trimmed'), 1)
    count(counter .. '.bytes', -size)
    bytes, read, removed = bytes - size, read + size, removed + 1
  end
  return removed, true
end
-- After what was written: twice as many may go, so that a log which is over its bound comes under it by itself.
local function trim_written()
  for name, n in pairs(written) do trim(name, 2 * n, false) end
  written = {}
end

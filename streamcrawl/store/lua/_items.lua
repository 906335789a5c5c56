-- fragment _items.lua: items on their way between the stages of a program, and the marks of their streams. Needs _state.
--
-- The state's `stages` names the stages; its `flow` is JSON: stage or output -> {from: lines that feed it, batch: items
-- in one call}. An output without a row is fed by pages. `throttled` lists the streams that are over their mark.
-- An entry of a stage has `item` (`["Type",item]`), `url` (of the page that it comes from), `attempt` and `crashes`.
-- `<name>.bytes` of the totals is the length of all items in the stream of a stage or an output.
-- Derives `stream:<stage>`, `stream:fetch:<sink>`, `dead`, `log:<name>`.
-- include _logs
local STAGES = {}
for name in string.gmatch(S.stages or '', '[^,]+') do STAGES[name] = true end
local function stream_of(name) return P .. (STAGES[name] and 'stream:' or 'stream:fetch:') .. name end

local function bytes_in(name)
  local field = name .. '.bytes'
  return (tonumber(call('HGET', P .. 'totals', field)) or 0) + (counts[field] or 0)
end

local function enter_item(stage, item, url, attempt, crashes)
  call('XADD', P .. 'stream:' .. stage, '*', 'item', item, 'url', url, 'attempt', attempt, 'crashes', crashes)
  count(stage .. '.streamed', 1)
  count(stage .. '.bytes', #item)
end

-- True when this call ended the entry, as `leave` says for pages.
local function leave_item(stage, id, item)
  local stream = P .. 'stream:' .. stage
  if call('XACK', stream, 'workers', id) ~= 1 then return false end
  call('XDEL', stream, id)
  count(stage .. '.streamed', -1)
  count(stage .. '.bytes', -#item)
  return true
end

local function item_in(fields)
  local f = {}
  for i = 1, #fields, 2 do f[fields[i]] = fields[i + 1] end
  return {item = f.item or '', url = f.url or '', attempt = tonumber(f.attempt) or 1, crashes = tonumber(f.crashes) or 0}
end

local function delay_item(stage, id, f, delay_ms)
  -- With the id of its entry: two equal items would be one member.
  call('ZADD', P .. 'delayed', now + delay_ms,
    table.concat({'stage', stage, id, f.attempt, f.crashes, #f.url, f.url .. f.item}, '|'))
  count(stage .. '.delayed', 1)
  count(stage .. '.retried', 1)
end

local function bury_item(stage, f, reason, error, worker)
  call('XADD', P .. 'dead', '*', 'stage', stage, 'reason', reason, 'host', string.match(f.url, '^%l[%w+.-]*://[^/]*') or '',
    'level', '', 'task', f.item, 'url', f.url, 'attempt', f.attempt, 'crashes', f.crashes, 'error', error,
    'last_status', '', 'worker', worker)
  count(stage .. '.dead', 1)
  count(stage .. '.dead.' .. reason, 1)
end

local flow_read
local function flow_of(name)
  if not flow_read then
    local is_read, flow = pcall(cjson.decode, call('HGET', KEYS[1], 'flow') or '{}')
    flow_read = is_read and flow or {}
  end
  return flow_read[name]
end

-- Entries that may wait in a stream, and bytes that may be in it; nil for no bound. Never less than two batches, or two
-- rounds of all its slots: a stage that is fast must not wait for the one before it.
local function mark_of(name)
  if not STAGES[name] then return tonumber(S.sink_max), tonumber(S.sink_max_bytes) end
  local row = flow_of(name) or {}
  local slots = tonumber(call('HGET', KEYS[1], 'slots:' .. name)) or 0
  return math.max(tonumber(S.stage_max) or 1000, 2 * (tonumber(row.batch) or 1), 2 * slots),
    tonumber(S.stage_bytes) or 64000000
end

-- Set or clear the flags of streams that changed. Hysteresis: set above 80 % of the mark, cleared under 20 %, so that it
-- does not flutter. Before flush_counts.
local function watch_marks(names)
  local kept, is_set, has_changed = {}, {}, false
  for name in string.gmatch(S.throttled or '', '[^,]+') do
    kept[#kept + 1] = name
    is_set[name] = true
  end
  for i = 1, #names do
    local name = names[i]
    local most, most_bytes = mark_of(name)
    local is_over = false
    local function compare(amount, mark)
      if is_set[name] then is_over = is_over or amount >= mark * 0.2 else is_over = is_over or amount > mark * 0.8 end
    end
    if most then compare(waiting_in(stream_of(name)), most) end
    if most_bytes then compare(bytes_in(name), most_bytes) end
    if is_over and not is_set[name] then
      kept[#kept + 1] = name
      is_set[name], has_changed = true, true
      hold('full:' .. name)
    elseif is_set[name] and not is_over then
      is_set[name], has_changed = nil, true
      let_go('full:' .. name)
    end
  end
  if not has_changed then return end
  local left = {}
  for i = 1, #kept do if is_set[kept[i]] then left[#left + 1] = kept[i] end end
  local was = S.throttled or ''
  S.throttled = table.concat(left, ',')
  if S.throttled == '' then
    call('HDEL', KEYS[1], 'throttled', 'throttled_at')
  else
    call('HSET', KEYS[1], 'throttled', S.throttled)
    if was == '' then call('HSET', KEYS[1], 'throttled_at', wall) end
  end
end

-- Look at all flags that are set: what left a stream otherwise than by a commit (dead, taken back) clears none.
local function watch_throttled()
  local names = {}
  for name in string.gmatch(S.throttled or '', '[^,]+') do names[#names + 1] = name end
  if #names > 0 then watch_marks(names) end
end

-- Does a stream that this line feeds stand over its mark?
local function is_held(line)
  for name in string.gmatch(S.throttled or '', '[^,]+') do
    local row = flow_of(name)
    if not row then
      if line == 'page' then return true end
    else
      for _, from in ipairs(row.from or {}) do if from == line then return true end end
    end
  end
  return false
end

-- Are these items (name, record, …) for streams that there are?
local SINKS
local function is_log(name) return sub(name, 1, 4) == 'log:' end
local function are_items(items)
  if type(items) ~= 'table' or #items % 2 ~= 0 then return false end
  if not SINKS then
    SINKS = {}
    for name in string.gmatch(call('HGET', KEYS[1], 'sinks') or '', '[^,]+') do SINKS[name] = true end
  end
  for i = 1, #items, 2 do
    local name, record = items[i], items[i + 1]
    if type(name) ~= 'string' or type(record) ~= 'string' then return false end
    if is_log(name) then
      if not (LOGS[sub(name, 5)] and find(record, '^[01]%["')) then return false end
    elseif not (STAGES[name] or SINKS[name]) then return false end
  end
  return true
end

-- Put one into the stream of a stage or an output, as created.
local function enter_new(name, record, url)
  count(name .. '.created', 1)
  if STAGES[name] then return enter_item(name, record, url, 1, 0) end
  call('XADD', P .. 'stream:fetch:' .. name, '*', 'item', record)
  count(name .. '.streamed', 1)
  count(name .. '.bytes', #record)
end

-- Write them as given by `line`; `touched` collects the streams. `log:<name>` stands behind the streams that its item went
-- to, and has 1 (a result) or 0 before the item.
local function emit(items, url, touched, line)
  local to = {}
  for i = 1, #items, 2 do
    local name, record = items[i], items[i + 1]
    if is_log(name) then
      keep(sub(name, 5), sub(record, 2), url, line, table.concat(to, ','), sub(record, 1, 1))
      to = {}
    else
      enter_new(name, record, url)
      if not touched[name] then
        touched[name] = true
        touched[#touched + 1] = name
      end
      if S.logs then
        local base = string.match(name, '^[^@]+')
        to[#to + 1] = base
        -- What goes into a stage that parses is a page, as it stands in the entry.
        local pages = 'fetched.' .. base
        if STAGES[name] and LOGS[pages] and kept_ms(pages) > 0 then keep(pages, record, url, line, base, '0') end
      end
    end
  end
end

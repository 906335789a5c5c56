-- fragment _replays.lua: the walk of a replay along a retained log. Needs _state and _items.
--
-- `replays` has of each replay that is under way: `<id>` -> its plan, JSON: log, target (stage with its version, or output),
-- first and last (ms, as text; of the entries, both included), and what must hold of an entry: takes (types), is_results
-- (no stage took it), is_missing (it was never sent to the target), type, version, url (its beginning). `<id>:at` -> entry up
-- to which it has come, looked at, copied. `replayed` has `missing:<log>:<target>` -> up to where a replay of what was missing
-- has come, for the next one, and `ended:<id>` -> when, looked at, copied, of the last 20. It has
-- `gone:<id>` too -> the newest entry that the log had lost when a replay under way began, and `gap:<id>` -> 1 once it has lost
-- some to which the replay had not come. (Not in `replays`: an older version would leave them, and finish counts what is there.)
-- Derives `replays`, `replayed`, `log:<name>`.
local ENDED_KEPT = 20
local function base_of(line) return string.match(line, '^[^@]+') end
local function has_name(list, name) return string.find(',' .. list .. ',', ',' .. name .. ',', 1, true) ~= nil end

-- What of an entry of the log goes to the target; nil when the replay is not about it.
local function sent_of(plan, f)
  local kinds, rest = string.match(f.item or '', '^%["([^"]*)",(.*)$')
  if not kinds then return nil end
  if plan.is_missing and has_name(f.to or '', base_of(plan.target)) then return nil end
  if plan.is_results and f.result ~= '1' then return nil end
  if plan.url and string.sub(f.url or '', 1, #plan.url) ~= plan.url then return nil end
  if plan.version and (string.match(f.line or '', '@(.*)$') or '') ~= plan.version then return nil end
  local kind, is_of_type = plan.takes and '' or 'any', not plan.type
  for one in string.gmatch(kinds, '[^;]+') do
    if one == plan.type then is_of_type = true end
    for _, taken in ipairs(kind == '' and plan.takes or {}) do if one == taken then kind = one end end
  end
  if kind == '' or not is_of_type then return nil end
  if not STAGES[plan.target] then return string.match(rest, '^(.*),%d+%]$') end
  return '["' .. kind .. '",' .. rest
end

-- Go along the log from behind `at` ('' for its beginning): at most 100 entries, and some 500 kB. `take` is called with what
-- is to be sent, and says whether there is room for it. Returns where it has come, how many it looked at, how many were
-- taken, and 'MORE', 'FULL' or 'END'.
local function walk(plan, at, take)
  local key, looked, taken, read = P .. 'log:' .. plan.log, 0, 0, 0
  while looked < 100 and read < 500000 do
    local entry = call('XRANGE', key, at == '' and plan.first or '(' .. at, plan.last, 'COUNT', 1)[1]
    if not entry then return at, looked, taken, 'END' end
    local f = fields_of(entry)
    local item = sent_of(plan, f)
    if item then
      if not take(item, f.url or '') then return at, looked, taken, 'FULL' end
      taken = taken + 1
    end
    at, looked, read = entry[1], looked + 1, read + log_size(f)
  end
  return at, looked, taken, 'MORE'
end

-- The newest entry that was removed from a log, '0-0' when none was. It loses the oldest ones only (_logs.lua).
local function newest_gone(log)
  if call('EXISTS', P .. 'log:' .. log) == 0 then return '0-0' end
  local about = call('XINFO', 'STREAM', P .. 'log:' .. log)
  for i = 1, #about, 2 do if about[i] == 'max-deleted-entry-id' then return about[i + 1] end end
end
local function is_behind(id, other)
  local ms, n = string.match(id, '^(%d+)-(%d+)$')
  local other_ms, other_n = string.match(other, '^(%d+)-(%d+)$')
  return tonumber(ms) < tonumber(other_ms) or ms == other_ms and tonumber(n) < tonumber(other_n)
end
-- Has the log lost entries that a replay was to send, and to which it has not come (`at`)?
local function has_gap(id, plan, at)
  local gone, past = newest_gone(plan.log), call('HGET', P .. 'replayed', 'gone:' .. id)
  if not past then return false end   -- an older version began it
  if at ~= '' and is_behind(past, at) then past = at end
  local function ms(entry) return tonumber(string.match(entry, '^%d+')) end
  return is_behind(past, gone) and ms(gone) >= (tonumber(plan.first) or 0) and ms(past) <= (tonumber(plan.last) or math.huge)
end

local function end_replay(id, looked, copied)
  call('HDEL', P .. 'replays', id, id .. ':at')
  call('HDEL', P .. 'replayed', 'gone:' .. id)
  call('HSET', P .. 'replayed', 'ended:' .. id, wall .. ' ' .. looked .. ' ' .. copied)
  local rows, ended = call('HGETALL', P .. 'replayed'), {}
  for i = 1, #rows, 2 do
    if string.sub(rows[i], 1, 6) == 'ended:' then ended[#ended + 1] = {tonumber(string.match(rows[i + 1], '^%d+')), rows[i]} end
  end
  table.sort(ended, function(a, b) return a[1] > b[1] or (a[1] == b[1] and a[2] > b[2]) end)
  for i = ENDED_KEPT + 1, #ended do
    local old = string.sub(ended[i][2], 7)
    call('HDEL', P .. 'replayed', 'ended:' .. old, 'gap:' .. old)
  end
end

-- fragment _stream.lua: the only places where a task enters and leaves the work stream. Needs _state, _hosts and _items.
--
-- in_flight of a host = its entries in `stream:fetch`, because it changes here and nowhere else (`fly`).
-- What a command is given as a number is written out to 17 digits, by far the slowest part of its call.
local texts = {}
local function text_of(number)
  local text = texts[number]
  if not text then
    text = tostring(number)
    texts[number] = text
  end
  return text
end

-- `delay` and `cap` are the politeness that holds for it, which a worker cannot know: an operator may have set it for this
-- host. Not written where neither the host nor the crawl has a delay: what an entry does not say a worker has from its
-- settings, and each field costs the server, which reads the entry twice, as much as finding it. The caller counts it.
local function enter(key, h, level, task, delay, cap)
  if delay == 0 and DELAY == 0 then
    call('XADD', STREAM, '*', 'host', key, 'level', level, 'task', task)
  else
    call('XADD', STREAM, '*', 'host', key, 'level', level, 'task', task, 'delay', text_of(delay), 'cap', text_of(cap))
  end
  fly(key, h, 1)
end

-- The host of the entry when this call ended it, else false: XACK answers 1 to one caller only, which makes the id a
-- fencing token. Who ends many passes a list, `ended`, and deletes its ids at once: the server looks for the new first
-- entry each time.
local function leave(key, line, id, ended)
  if call('XACK', STREAM, 'workers', id) ~= 1 then return false end
  if ended then ended[#ended + 1] = id else call('XDEL', STREAM, id) end
  local h = host(key)
  fly(key, h, -1)
  count(line .. '.streamed', -1)
  return h
end

-- Take an entry of any work stream back from whoever held it; the task (or the item) becomes a new entry later.
-- `crash` says that its worker died with it; only a crash with no other entry in hand (`alone`) counts towards death:
-- two shared crashes first bring a task into a worker of its own, so that it cannot take neighbours with it.
-- `begun`: a fetch of it may have been under way until just now, so the host's delay counts from here.
local function take_back_item(stage, id, fields, crash, alone, worker)
  local f = item_in(fields)
  if not leave_item(stage, id, f.item) then return false end
  if crash then
    if f.crashes < 2 or alone then f.crashes = f.crashes + 1 end
    count(stage .. '.crashed', 1)
    if f.crashes >= 2 + (tonumber(S.crashes_max) or 3) then
      bury_item(stage, f, 'crashed', 'its worker died ' .. f.crashes .. ' times with this item in hand, at last alone', worker)
      return true
    end
  end
  enter_item(stage, f.item, f.url, f.attempt, f.crashes)
  return true
end
local function take_back(stream, id, fields, crash, alone, worker, begun)
  local stage = string.sub(stream, #P + 8)
  if STAGES[stage] then return take_back_item(stage, id, fields, crash, alone, worker) end
  local f = {}
  for i = 1, #fields, 2 do f[fields[i]] = fields[i + 1] end
  if stream ~= STREAM then
    if call('XACK', stream, 'workers', id) ~= 1 then return false end
    call('XDEL', stream, id)
    call('XADD', stream, '*', unpack(fields))
    return true
  end
  local key, level, task = f.host, f.level, f.task
  if not (key and level and task) then
    -- Not written by `enter`. An error here would keep every other entry from being taken back, for ever.
    if call('XACK', stream, 'workers', id) ~= 1 then return false end
    call('XDEL', stream, id)
    count('page.created', 1)
    bury('page', key or '', level or '', task or '', 'codec', 'not an entry of this stream', '', worker)
    return true
  end
  local line = kind_of(task)
  local h = leave(key, line, id)
  if not h then return false end
  if begun then fetch_ended(h, now) end
  if crash then
    local crashes = tonumber(string.match(task, '^%[(%d+),')) or 0
    if crashes < 2 or alone then
      crashes = crashes + 1
      task = string.gsub(task, '^%[%d+', '[' .. crashes, 1)
    end
    count(line .. '.crashed', 1)
    if crashes >= 2 + (tonumber(S.crashes_max) or 3) then
      -- Its gate stays shut: asking again would meet the same poison.
      if line == 'robots' then h.robots, h.given_up = '', 'robots_unreachable' end
      seed_ended(task)
      bury(line, key, level, task, 'crashed', 'its worker died ' .. crashes .. ' times with this task in hand, at last alone', '', worker)
      return true
    end
  end
  push_head(key, h, level, task)
  count(line .. '.queued', 1)
  return true
end

-- The same for one pending row. When its entry was deleted by hand, only the row is ended: it would stay for ever.
local function take_back_row(stream, id, crash, alone, worker, begun)
  local entry = call('XRANGE', stream, id, id)[1]
  if entry then return take_back(stream, id, entry[2], crash, alone, worker, begun) end
  call('XACK', stream, 'workers', id)
  return false
end

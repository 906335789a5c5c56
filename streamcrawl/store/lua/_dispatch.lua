-- fragment _dispatch.lua: move tasks of hosts that are due into the work stream. Needs _state, _hosts, _items and _stream.
--
-- Returns how many were moved, ms until the next host is due (-1: none scheduled) and one word: OK, IDLE (nothing
-- scheduled), FULL (enough waits already: 2 x live slots), BUDGET (pages_max reached), PAUSED, THROTTLED (a following
-- stage is over its mark), or the reason the crawl was stopped for. At most 100 hosts and `limit` tasks a call.
local ROBOTS_REST = ',"robots","/robots.txt",0]'

local function dispatch(limit)
  settle()
  if S.paused == '1' then return 0, -1, 'PAUSED' end
  if S.stopped and S.stopped ~= '' then return 0, -1, S.stopped end
  if S.throttled and S.throttled ~= '' then
    watch_throttled()
    if is_held('page') then return 0, -1, 'THROTTLED' end
  end
  local first = call('ZRANGE', P .. 'schedule', 0, 0, 'WITHSCORES')
  if #first == 0 then return 0, -1, 'IDLE' end
  local next_ms = tonumber(first[2]) - now
  if next_ms > 0 then return 0, next_ms, 'OK' end

  local room = math.min(limit, 2 * (tonumber(S.slots) or 0) - waiting_in(STREAM))
  if room <= 0 then return 0, 0, 'FULL' end
  local budget = math.huge
  if S.pages_max then
    local done = call('HMGET', P .. 'totals', 'page.done', 'page.streamed')
    budget = tonumber(S.pages_max) - (tonumber(done[1]) or 0) - (tonumber(done[2]) or 0)
      - (counts['page.done'] or 0) - (counts['page.streamed'] or 0)
    if budget <= 0 then return 0, -1, 'BUDGET' end
  end

  local moved = 0
  local due = call('ZRANGE', P .. 'schedule', '-inf', now, 'BYSCORE', 'LIMIT', 0, math.min(room, 100))
  for i = 1, #due do
    local key = due[i]
    local h = host(key)
    local cap, delay = cap_of(h), delay_of(h)
    local free = math.min(cap - h.in_flight, room - moved)
    if delay > 0 then free = math.min(free, 1) end
    if delay > 0 and cap > 1 and free > 0 and h.start_due == 0 then
      -- What is under way was handed out with a cap of 1, which was raised since: it asks nobody (start.lua) and may have
      -- begun just now. The 1 says of the others that they do ask.
      h.start_due = h.in_flight > 0 and now + delay or 1
    end
    local passage = gate(h)
    if passage == 'ask' and free > 0 then
      enter(key, h, '0', '[0,' .. wall .. ROBOTS_REST, 'robots')
      count('robots.created', 1)
      h.robots = 'asked'
      moved = moved + 1
      free = 0
    end
    if passage == 'asked' then free = math.min(free, 1) end
    if PAGES_MOST then free = math.min(free, PAGES_MOST - h.pages - h.in_flight) end
    for level = 0, (passage == 'asked') and 0 or 3 do
      while free > 0 and (level == 0 or budget > 0) do
        -- As many at once as may go if all of them are pages: one by one moves the rest of the list each time.
        local most = level == 0 and free or math.min(free, budget)
        local tasks = call('LPOP', queue_key(key, level), most)
        if not tasks then break end
        for n = 1, #tasks do
          local line = kind_of(tasks[n])
          count(line .. '.queued', -1)
          enter(key, h, tostring(level), tasks[n], line)
          if line == 'page' then budget = budget - 1 end
          -- With a cap above 1 and a delay, tasks are also handed out a delay apart, so that slots do not fill with
          -- tasks that must wait (start.lua keeps the order strictly).
          if delay > 0 and cap > 1 then h.due = math.max(h.due, now) + delay end
        end
        h.queued = h.queued - #tasks
        moved, free = moved + #tasks, free - #tasks
        if #tasks < most then break end
      end
    end
    -- All four lists are empty: a count that says otherwise would keep the host in front, due for ever. The totals
    -- still tell (audit, and finish says UNBALANCED).
    if passage == 'open' and free > 0 and budget > 0 then h.queued = 0 end
    if moved >= room then break end
  end
  settle()
  first = call('ZRANGE', P .. 'schedule', 0, 0, 'WITHSCORES')
  if #first == 0 then return moved, -1, 'OK' end
  return moved, math.max(0, tonumber(first[2]) - now), 'OK'
end

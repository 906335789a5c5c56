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
  local function send(key, h, most)
    local p, cap, delay = pace_of(h), cap_of(h), delay_of(h)
    local free = math.min(room_of(h), room - moved, most)
    if delay > 0 then free = math.min(free, 1) end
    local sent = {}   -- line -> tasks of it
    if delay > 0 and cap > 1 and free > 0 and p.start_due == 0 then
      -- What is under way was handed out with a cap of 1, which was raised since: it asks nobody (start.lua) and may have
      -- begun just now. The 1 says of the others that they do ask.
      p.start_due = p.in_flight > 0 and now + delay or 1
    end
    local passage = gate(h)
    if passage == 'ask' and free > 0 then
      enter(key, h, '0', '[0,' .. wall .. ROBOTS_REST, delay, cap)
      count('robots.created', 1)
      count('robots.streamed', 1)
      h.robots = 'asked'
      moved = moved + 1
      free = 0
    end
    if passage == 'asked' then free = math.min(free, 1) end
    if PAGES_MOST then free = math.min(free, PAGES_MOST - h.pages - h.in_flight) end
    for _, level in ipairs(passage == 'asked' and {0} or levels_of(h)) do
      while free > 0 and h.queued > 0 and (level == 0 or budget > 0) do
        -- As many at once as may go if all of them are pages: one by one moves the rest of the list each time.
        local at_once = level == 0 and free or math.min(free, budget)
        local tasks = call('LPOP', queue_key(key, level), at_once)
        if not tasks then break end
        local level_text = tostring(level)
        for n = 1, #tasks do
          local line = kind_of(tasks[n])
          sent[line] = (sent[line] or 0) + 1
          enter(key, h, level_text, tasks[n], delay, cap)
          if line == 'page' then budget = budget - 1 end
          -- With a cap above 1 and a delay, tasks are also handed out a delay apart, so that slots do not fill with
          -- tasks that must wait (start.lua keeps the order strictly).
          if delay > 0 and cap > 1 then p.due = math.max(p.due, now) + delay end
        end
        h.queued = h.queued - #tasks
        moved, free = moved + #tasks, free - #tasks
        if #tasks < at_once then break end
      end
    end
    for line, n in pairs(sent) do
      count(line .. '.queued', -n)
      count(line .. '.streamed', n)
    end
    -- All four lists are empty: a count that says otherwise would keep the host in front, due for ever. The totals
    -- still tell (audit, and finish says UNBALANCED).
    if passage == 'open' and free > 0 and budget > 0 then h.queued = 0 end
  end
  -- Hosts of a domain take turns: those first that wait for longest, each an equal share of what is free. One that fails
  -- comes with each fifth turn, unless nothing else is left: of thousands that are down, each costs as long as a time limit.
  local looks = 100
  local function send_of(name)
    local p = domain(name)
    misplaced[name] = true
    local most, from, keys = math.min(math.max(1, cap_of(p) - p.in_flight), looks), nil, {}
    local are_probed = call('EXISTS', P .. 'probes:' .. name) == 1
    for _, at in ipairs(not are_probed and {'turns:'} or p.unprobed >= 4 and {'probes:', 'turns:'} or {'turns:', 'probes:'}) do
      if #keys == 0 then
        from = at
        keys = call('ZRANGE', P .. at .. name, '-inf', now, 'BYSCORE', 'LIMIT', 0, at == 'probes:' and 1 or most)
      end
    end
    p.unprobed = (are_probed and from == 'turns:' and #keys > 0) and math.min(4, p.unprobed + 1) or 0
    for i = 1, #keys do
      local free = cap_of(p) - p.in_flight
      if free <= 0 or p.due > now or moved >= room then break end
      local h = host(keys[i], name)
      looks = looks - 1
      had_turn[keys[i]] = true
      if h.domain == name then send(keys[i], h, math.ceil(free / (#keys - i + 1)))
      else call('ZREM', P .. from .. name, keys[i]) end   -- its hash was lost and made anew: it would be the first here for ever
    end
  end

  local due = call('ZRANGE', P .. 'schedule', '-inf', now, 'BYSCORE', 'LIMIT', 0, math.min(room, 100))
  for i = 1, #due do
    if BY_DOMAIN then send_of(due[i]) else send(due[i], host(due[i]), math.huge) end
    if moved >= room or looks <= 0 then break end
  end
  settle()
  first = call('ZRANGE', P .. 'schedule', 0, 0, 'WITHSCORES')
  if #first == 0 then return moved, -1, 'OK' end
  return moved, math.max(0, tonumber(first[2]) - now), 'OK'
end

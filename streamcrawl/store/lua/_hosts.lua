-- fragment _hosts.lua: the state of hosts, loaded once per call, changed in memory, written by `settle`.
--
-- Derives `host:<host key>`, `queue:<host key>:<level>`, `schedule`, `failing`, `giving_up`, `given_up`, `demoted`, `revisits`,
-- `domain:<domain>`, `turns:<domain>`, `probes:<domain>`.
-- A host is in `schedule` exactly when a task of it may be dispatched at its score: something is queued, it is under
-- its cap and its page budget, it is neither given up nor blocked by an operator, and its robots.txt is known (or the
-- robots task itself is queued).
--
-- By registrable domain (BY_DOMAIN) all that says how fast to ask is the domain's (`pace_of`): cap, what is in flight,
-- delay, due times, Retry-After, circuit. Then `schedule` has domains, each exactly when it is under its cap and a host
-- of it is ready; hosts that are ready stand in `turns:<domain>` by the time since which they wait, or in
-- `probes:<domain>` while they fail. A host's own `due` and `blocked_until` say how long it is passed over. The domain
-- knows what each of its hosts has in flight, in a field `in_flight:<host key>`, rather than a sum that could drift.
--
-- A field that is 0 or '' is not stored at all: a broad crawl has a million of these. What is not stored reads as its
-- default here, and HGETALL of the few stored ones takes less time than asking for each.
--
-- `levels` has the digits of the levels beside 2 at which a host with tasks may have some: most hosts of most crawls have
-- none. A look for a list that is not there costs as much, among millions of keys, as taking a task from one that is
-- (benchmarks/frontier_size.py). It says where to look first (`levels_of`) and no more: older versions do not keep it.
local HOST_DEFAULTS = {queued = 0, levels = '', in_flight = 0, due = 0, start_due = 0, robots = '', robots_until = 0, failures = 0,
  failing = '', failed_at = 0, blocked_until = 0, cap = 0, delay = 0, delay_set = '', paced = 0, throttled = 0,
  throttled_at = 0, throttled_by = '', said = '', alike = 0, demoted = 0, pages = 0, given_up = '', blocked = '',
  domain = '',                          -- of a host
  failing_since = 0, unprobed = 0}      -- of a domain
local HOST = {__index = HOST_DEFAULTS}
local PAGES_MOST = tonumber(S.pages_per_host_max)
local hosts, stored, touched = {}, {}, {}
local domains, paces, touched_domains, had_turn = {}, {}, {}, {}
-- Domains whose place in the schedule has to be found anew; and those that a host was only added to, since when it waits.
local misplaced, joined = {}, {}

local function load(key)
  local h, was, row = setmetatable({}, HOST), {}, call('HGETALL', key)
  for i = 1, #row, 2 do
    local field, value = row[i], row[i + 1]
    if type(HOST_DEFAULTS[field] or 0) == 'number' then value = tonumber(value) or 0 end
    h[field], was[field] = value, value
  end
  return h, was
end

local function domain(name)
  local p = domains[name]
  touched_domains[name] = true
  if p then return p end
  local flying = 0
  p, stored[name] = load(P .. 'domain:' .. name)
  for field, n in pairs(p) do if string.find(field, '^in_flight:') then flying = flying + n end end
  p.in_flight = flying
  domains[name] = p
  return p
end

-- `of` is its registrable domain, as who may meet it for the first time says it (`named`). Without, one that is not known
-- stands for itself, as no public suffix is known here. It is kept, so that another list of suffixes never moves a host
-- with tasks under way.
local function host(key, of)
  local h = hosts[key]
  touched[key] = true
  if not h then
    h, stored[key] = load(P .. 'host:' .. key)
    hosts[key] = h
  end
  if BY_DOMAIN then
    if h.domain == '' then h.domain = of or string.match(key, '//(.*):%d+$') or string.match(key, '//(.*)') or key end
    paces[h] = domain(h.domain)
  end
  return h
end
-- The host key and the domain of a host as callers name it: `<host key>|<domain>` by domain, else the key alone. No domain
-- where there should be one, or one that the host is not under: nil, or one mistake would make one of all hosts.
local keys_of, domains_of = {}, {}
local function named(text)
  if not BY_DOMAIN then return text end
  if keys_of[text] == nil then
    local key, of = string.match(text, '^([^|]*)|([^|/]+)$')
    local name = key and (string.match(key, '//(.*):%d+$') or string.match(key, '//(.*)'))
    local is_under = name and (name == of or string.sub(name, -#of - 1) == '.' .. of)
    keys_of[text], domains_of[text] = is_under and key, of
  end
  return keys_of[text] or nil, domains_of[text]
end

-- What politeness counts by, with the fields of a host: the host itself, or its domain; a domain's own is itself.
local function pace_of(h) return paces[h] or h end
local function pace_key(key, h) return paces[h] and 'domain:' .. h.domain or 'host:' .. key end
-- Where it stands while something of it may be sent.
local function place_of(h)
  if not paces[h] then return 'schedule' end
  return (h.failing == '' and 'turns:' or 'probes:') .. h.domain
end

-- The only place where in_flight changes, but for reconcile.lua.
local function fly(key, h, n)
  h.in_flight = h.in_flight + n
  local p = paces[h]
  if not p then return end
  local field = 'in_flight:' .. key
  p.in_flight, p[field] = p.in_flight + n, (p[field] or 0) + n
end

-- While the circuit of a host is open (`failing` says why) one probe at a time is enough to see whether it is back:
-- its whole cap would hit it at the moment it comes up, and hold as many slots until they time out.
local function cap_of(h)
  local p = paces[h] or h
  if p.failing ~= '' then return 1 end
  return p.cap > 0 and p.cap or CAP
end
-- How many of the host may be sent beside those of it that are under way; and beside those of its whole domain.
local function own_room_of(h)
  if not paces[h] then return cap_of(h) - h.in_flight end
  return h.failing ~= '' and 1 - h.in_flight or math.huge
end
local function room_of(h) return math.min(own_room_of(h), cap_of(h) - pace_of(h).in_flight) end
-- Has a host something to fetch that is neither demoted nor failing? As far as five that wait, by chance, and five under way
-- tell: asked once a call, and only where a demoted host is looked at. By domain as far as five of each of its own and of
-- five other domains tell: its own is not in the schedule just now.
local others = {}
local function others_wait(h)
  if others[h.domain] ~= nil then return others[h.domain] end
  local names = call('ZRANDMEMBER', P .. 'schedule', 5)
  if BY_DOMAIN then
    local scheduled = names
    scheduled[#scheduled + 1] = h.domain
    names = {}
    for i = 1, #scheduled do
      for _, key in ipairs(call('ZRANDMEMBER', P .. 'turns:' .. scheduled[i], 5)) do names[#names + 1] = key end
    end
  end
  for _, entry in ipairs(call('XRANGE', STREAM, '-', '+', 'COUNT', 5)) do names[#names + 1] = entry[2][2] end
  others[h.domain] = false
  if #names == 0 then return false end
  local demoted, failing = call('ZMSCORE', P .. 'demoted', unpack(names)), call('ZMSCORE', P .. 'failing', unpack(names))
  for i = 1, #names do others[h.domain] = others[h.domain] or not (demoted[i] or failing[i]) end
  return others[h.domain]
end
-- Times its delay that a host is left alone because its pages say nothing new (_alike.lua). Only while others have more to
-- say: slowed down when it is all there is, a crawl of one site would not end for it, and of a false verdict nobody has
-- any good.
local function demotion_of(h)
  local times = pace_of(h).delay_set == '' and math.min(h.demoted, DEMOTION_MAX) or 0
  return times > 1 and others_wait(h) and times or 1
end

-- `delay` is what the host asks for (Crawl-delay, capped): it may lengthen the crawl's own, which may change, never
-- shorten it. `paced` and `throttled` are what it was seen to bear (_pace.lua), up to the crawl's bound; a host that
-- is demoted (_alike.lua) is left alone so many times as long, up to the same bound. `delay_set` is an operator's word for
-- this host, and wins over all.
local FIRST_STEP_MS = 100   -- of a host without a delay: there is nothing to double
local function floor_of(h) return max(h.delay, DELAY) end
local function borne_of(h) return max(floor_of(h), min(max(h.paced, h.throttled), DELAY_MAX)) end
-- A host's own Crawl-delay holds after each fetch of it, for its domain too. That it is demoted is no reason to leave its
-- siblings alone: then it is passed over itself (fetch_ended).
local function demoted_delay_of(h, delay)
  local times = demotion_of(h)
  if times <= 1 then return delay end
  return math.max(delay, math.min(math.max(delay, FIRST_STEP_MS) * times, DELAY_MAX))
end
local function delay_of(h)
  local p = paces[h] or h
  local set = p.delay_set ~= '' and tonumber(p.delay_set)
  if set then return set end
  local delay = max(h.delay, borne_of(p))
  if p == h and h.demoted > 1 then delay = demoted_delay_of(h, delay) end
  return delay
end
local function queue_key(key, level) return P .. 'queue:' .. key .. ':' .. level end
-- What a task is. Nearly each is `[0,<13 digits>,"page",…`: to compare is four times as fast as to match.
local function kind_of(task)
  if sub(task, 17, 24) == ',"page",' then return 'page' end
  return match(task, '^%[%d+,%d+,"(%l+)"') or 'page'
end
local function kind_of_rest(rest) return sub(rest, 1, 7) == '"page",' and 'page' or match(rest, '^"(%l+)"') end

-- Does the robots gate of the host stand open? 'open', 'asked' (its robots task is under way) or 'ask'.
local function gate(h)
  if S.robots ~= '1' then return 'open' end
  if h.robots == 'asked' then return 'asked' end
  if h.robots == 'known' and h.robots_until > now then return 'open' end
  return 'ask'
end

-- Given up, and pages lost by it: not for its page budget, by which all is fetched that was wanted.
local function is_lost(h) return h.given_up ~= '' and h.given_up ~= 'host_budget' end

-- Tail pushes are collected and written in one call per queue; head pushes are written at once.
local tails = {}
local function note_level(h, level)
  if h.queued <= 0 then h.levels = '' end
  if level ~= '2' and not string.find(h.levels, level, 1, true) then h.levels = h.levels .. level end
end
local function push_tail(key, h, level, task)
  local at = queue_key(key, level)
  local list = tails[at]
  if not list then list = {} tails[at] = list end
  list[#list + 1] = task
  note_level(h, level)
  h.queued = h.queued + 1
end
local function push_head(key, h, level, task)
  call('LPUSH', queue_key(key, level), task)
  note_level(h, level)
  h.queued = h.queued + 1
end
-- The levels in the order in which to take tasks: those first at which there may be some.
local orders = {}
local function levels_of(h)
  local order = orders[h.levels]
  if not order then
    local others = {}
    order = {}
    for level = 0, 3 do
      local is_known = level == 2 or string.find(h.levels, level, 1, true)
      local list = is_known and order or others
      list[#list + 1] = level
    end
    for i = 1, #others do order[#order + 1] = others[i] end
    orders[h.levels] = order
  end
  return order
end
local function flush_tails()
  for at, list in pairs(tails) do
    -- In parts: Lua unpacks 7,999 values at most, and an error here would leave a half-written call.
    for i = 1, #list, 1000 do call('RPUSH', at, unpack(list, i, math.min(i + 999, #list))) end
  end
  tails = {}
end

local function is_ready(key, h)
  if h.queued <= 0 or h.given_up ~= '' or h.blocked ~= '' or own_room_of(h) <= 0 then return false end
  -- Not only at the dispatch: a hundred hosts in front that may send nothing would keep all others from being seen.
  if PAGES_MOST and h.pages + h.in_flight >= PAGES_MOST then return false end
  return gate(h) ~= 'asked' or call('EXISTS', queue_key(key, '0')) == 1
end

local function is_blank(h)
  for field, value in pairs(h) do if field ~= 'domain' and value ~= 0 and value ~= '' then return false end end
  return true
end

local function write(at, h, was)
  local set, del = {}, {}
  for field, value in pairs(h) do
    if value ~= was[field] then
      if value ~= 0 and value ~= '' then set[#set + 1] = field set[#set + 1] = value
      elseif was[field] then del[#del + 1] = field end
      was[field] = (value ~= 0 and value ~= '') and value or nil
    end
  end
  if #set > 0 then call('HSET', at, unpack(set)) end
  if #del > 0 then call('HDEL', at, unpack(del)) end
  return #set + #del > 0
end

-- Should the domain be in the schedule? Then since when it could be sent; else nil.
local function place_in_schedule(name, p)
  if p.in_flight >= cap_of(p) then return nil end
  local since = call('ZRANGE', P .. 'turns:' .. name, 0, 0, 'WITHSCORES')[2]
  local probed = call('ZRANGE', P .. 'probes:' .. name, 0, 0, 'WITHSCORES')[2]
  if not since and not probed then return nil end
  return math.max(p.due, p.blocked_until, math.min(tonumber(since) or math.huge, tonumber(probed) or math.huge))
end

-- A host that is ready among those of its domain: whoever had its turn goes to the end, and all others keep their place.
local function take_turn(key, h, was_failing, is_moved)
  local at, score, name = P .. place_of(h), math.max(now, h.due, h.blocked_until), h.domain
  if (h.failing ~= '') ~= was_failing then
    call('ZREM', P .. (was_failing and 'probes:' or 'turns:') .. name, key)
    misplaced[name] = true
  end
  if not is_ready(key, h) then
    if call('ZREM', at, key) == 1 then misplaced[name] = true end
  elseif is_moved then
    call('ZADD', at, score, key)
    misplaced[name] = true
  elseif call('ZADD', at, 'NX', score, key) == 1 then
    joined[name] = math.min(joined[name] or math.huge, score)
  end
end

-- Write back what changed of every host and give each its place in the schedule.
local function settle()
  flush_tails()
  for key in pairs(touched) do
    local h, was = hosts[key], stored[key]
    if PAGES_MOST and h.pages >= PAGES_MOST and h.queued > 0 and h.given_up == '' then h.given_up = 'host_budget' end
    if h.given_up ~= (was.given_up or '') then
      -- For the eyes of people: hosts that were given up are named and counted without a look at every host.
      if is_lost(h) then call('ZADD', P .. 'given_up', 'NX', wall, key) else call('ZREM', P .. 'given_up', key) end
    end
    if (h.demoted > 0) ~= (was.demoted ~= nil) then
      if h.demoted > 0 then call('ZADD', P .. 'demoted', 'NX', wall, key) else call('ZREM', P .. 'demoted', key) end
    end
    local is_moved = had_turn[key] or h.due ~= (was.due or 0) or h.blocked_until ~= (was.blocked_until or 0)
    local was_failing = (was.failing or '') ~= ''
    -- Only asked about: nothing is kept of it, and who meets it first says of which domain it is.
    if paces[h] and not next(was) and is_blank(h) then was.domain = h.domain end
    write(P .. 'host:' .. key, h, was)
    local score = math.max(h.due, h.blocked_until)
    if paces[h] then take_turn(key, h, was_failing, is_moved)
    elseif not is_ready(key, h) then call('ZREM', P .. 'schedule', key)
    elseif score > 0 then call('ZADD', P .. 'schedule', score, key)
    -- Never fetched: its turn counts from now. With 0, new hosts would always go before those that are overdue.
    else call('ZADD', P .. 'schedule', 'NX', now, key) end
    if h.given_up ~= '' and h.queued > 0 then call('ZADD', P .. 'giving_up', 'NX', now, key) end
  end
  for name in pairs(touched_domains) do
    local p, was = domains[name], stored[name]
    was.in_flight = p.in_flight   -- the sum of what is stored
    local has_changed = write(P .. 'domain:' .. name, p, was)
    if has_changed or misplaced[name] then
      local score = place_in_schedule(name, p)
      if score then call('ZADD', P .. 'schedule', score, name) else call('ZREM', P .. 'schedule', name) end
    elseif joined[name] and p.in_flight < cap_of(p) then
      -- The short way, for pages with links to hundreds of domains: whoever waits for longer is there already.
      call('ZADD', P .. 'schedule', 'LT', math.max(p.due, p.blocked_until, joined[name]), name)
    end
  end
  touched, touched_domains, had_turn, misplaced, joined = {}, {}, {}, {}, {}
end

-- A request to the host ended `ended` ms (crawl time): from there its delay counts.
local function fetch_ended(h, ended)
  local p, delay = paces[h] or h, delay_of(h)
  -- Crawl time is rounded down: without the 1 a delay could be short by up to 1 ms, which a log of the host shows.
  local due = delay > 0 and ended + delay + 1 or ended
  if due > p.due then p.due = due end
  if p ~= h and h.demoted > 0 then
    local left_alone = demoted_delay_of(h, delay)
    if left_alone > delay then h.due = math.max(h.due, ended + left_alone + 1) end
  end
  if delay > 0 and cap_of(p) > 1 then p.start_due = max(p.start_due, due)
  -- Nobody is left who would ask: dispatch tells by it, should the cap be raised, that those under way did not.
  elseif p.in_flight == 0 then p.start_due = 0 end
end

-- As if it had never failed nor refused; a host or a domain.
local function forget_failures(p) p.failures, p.failing, p.failed_at, p.failing_since, p.blocked_until = 0, '', 0, 0, 0 end
local function forget_refusals(p) p.throttled, p.throttled_at, p.throttled_by = 0, 0, '' end

-- A host that was given up gets another chance, as if it had never failed. A page budget that is used up is no failure.
-- What its domain bears is known of others too.
local function give_chance(key, h)
  if h.given_up == 'host_budget' then return end
  h.given_up = ''
  forget_failures(h)
  if not paces[h] then forget_refusals(h) end
  call('ZREM', P .. 'giving_up', key)
  call('ZREM', P .. 'failing', key)
end

-- Fields of a dead letter by name; nil when there is none, or none that `bury` wrote.
local function letter_of(id)
  local entry, f = is_id(id) and call('XRANGE', P .. 'dead', id, id)[1], {}
  if not entry then return nil end
  for i = 1, #entry[2], 2 do f[entry[2][i]] = entry[2][i + 1] end
  return f.host and f.task and f.reason and f or nil
end
local function leave_dead(id, f)
  local line = (f.stage or 'fetch') == 'fetch' and kind_of(f.task) or f.stage
  call('XDEL', P .. 'dead', id)
  count(line .. '.dead', -1)
  count(line .. '.dead.' .. f.reason, -1)
  return line
end

-- Tasks of depth 0 are counted by themselves: whoever feeds seeds waits while too many of them are not ended yet.
-- Few others have the plain text of the first question, which is by far the faster one.
local function is_seed(rest) return find(rest, '",0', 1, true) and find(rest, '^"page","[^"]*",0[,%]]') and true or false end
local function seed_ended(task, n)
  if find(task, '",0', 1, true) and find(task, '^%[%d+,%d+,"page","[^"]*",0[,%]]') then count('seed.ended', n or 1) end
end

-- Keep a page until its next visit (revisit.lua): what its task will be, without the head. By the wall clock: crawl time
-- stands still while nobody works, and a page that is due each day changes all the same.
local function visit_later(key, level, rest, after_ms)
  call('ZADD', P .. 'revisits', wall + after_ms, level .. '|' .. key .. '|' .. rest)
end
-- The same for a task that ended without an answer of use, if the page was fetched before: its last field says so, and how
-- long it was left alone. Nothing else in a task ends it like that: a quote in a text has a backslash, and what a program
-- sends along is an object.
local function visit_again(key, level, task)
  if not S.revisit_ms then return false end
  local head, tail, interval = string.match(task, '^%[%d+,%d+,("page","[^"]*",%d+),%d+(,.*,%["again",(%d+),"[^%[%]{}]*"%]%])$')
  if not head or not string.find(level, '^[1-3]$') then return false end
  visit_later(key, level, head .. ',1' .. tail, tonumber(interval))
  return true
end
-- Dead for a fault on our side: somebody has to look, and to replay it. All else may be mended by the next visit.
local LETTERS = {codec = true, crashed = true, handler = true, internal = true, retry = true}

local function bury(line, key, level, task, reason, error, status, worker)
  if line == 'page' and not LETTERS[reason] and visit_again(key, level, task) then
    count('page.dropped', 1)
    count('page.dropped.unavailable', 1)
    return
  end
  call('XADD', P .. 'dead', '*', 'stage', 'fetch', 'reason', reason, 'host', key, 'level', level, 'task', task,
    'error', error, 'last_status', status, 'worker', worker)
  count(line .. '.dead', 1)
  count(line .. '.dead.' .. reason, 1)
end

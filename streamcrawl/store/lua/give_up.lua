#!lua flags=allow-oom
-- give_up.lua: give up hosts that have not answered for too long, and empty the queues of given-up hosts stepwise.
--
-- KEYS[1] state    hash  the crawl's state
-- ARGV[1] epoch    str   the epoch the caller joined with
-- ARGV[2] after    int   ms of crawl time without an answer
-- ARGV[3] idle     int   the same once only failing hosts are left to do
-- ARGV[4] limit    int   tasks to bury at most
--
-- Returns {'OK', buried, given_up, left}  tasks buried or dropped, hosts given up by this call, hosts left to empty
--         {'GONE'}
-- Derives `failing`, `giving_up`, `schedule`, `host:<host>`, `queue:<host>:<level>`, `dead`, `domain:<domain>`,
-- `turns:<domain>`, `probes:<domain>`. Repeat: harmless.
--
-- A host is judged when it has failed again after the limit, so up to one back-off later than the limit itself.
-- Where politeness is by domain each host is judged by itself all the same: ten thousand may be gone of a domain that is
-- well. But when the circuit of the domain has been open for as long, nobody of it having answered, all go that are
-- ready, some 50 a call of all domains: asked one after another, a back-off apart, they would hold the end for weeks.
-- Tasks of an unreachable host become dead letters (host_unreachable, robots_unreachable), which replay can send again;
-- those over a host's page budget are dropped (host_budget).
-- include _state
-- include _hosts
local limit, given = tonumber(ARGV[4]), 0
local after, failing = tonumber(ARGV[2]), call('ZCARD', P .. 'failing')
local after_idle, answered_at = after, tonumber(call('HGET', KEYS[1], 'answered_at')) or 0
-- Are all hosts of a domain that are ready failing ones?
local function is_only_failing_in(name) return call('EXISTS', P .. 'turns:' .. name) == 0 end
local function is_only_failing_scheduled()
  if not BY_DOMAIN then
    return #call('ZINTER', 2, P .. 'schedule', P .. 'failing') == call('ZCARD', P .. 'schedule')
  end
  for _, name in ipairs(call('ZRANGE', P .. 'schedule', 0, -1)) do
    if not is_only_failing_in(name) then return false end
  end
  return true
end
-- A hundred hosts that hang until a time limit are hardly ever idle all at once: what is under way of them does not count.
local function is_only_failing_under_way()
  if call('ZCARD', P .. 'delayed') > 0 or call('XLEN', STREAM) > 500 then return false end
  for _, entry in ipairs(call('XRANGE', STREAM, '-', '+')) do
    if not call('ZSCORE', P .. 'failing', entry[2][2]) then return false end
    -- At its cap a domain is not in the schedule, whatever else of it is ready.
    if BY_DOMAIN and not is_only_failing_in(host(entry[2][2]).domain) then return false end
  end
  return true
end
-- "Nothing else to do": every host that is scheduled or under way is a failing one. Counted only when it can be
-- true and is cheap; with more than 2,000 failing hosts the longer limit holds until there are fewer.
if failing > 0 and failing <= 2000 and call('ZCARD', P .. 'schedule') <= failing
  and is_only_failing_scheduled()
  and is_only_failing_under_way() then
  after_idle = math.min(after, tonumber(ARGV[3]))
end
-- `last` goes with the rest of its domain: until then it brings the domain back here.
local room = 50   -- of one call: when our own network was gone, fifty domains are down at once
local function give_up_domain(name, p, last)
  if room <= 0 then return false end
  local turns, probes = P .. 'turns:' .. name, P .. 'probes:' .. name
  local is_all = call('ZCARD', turns) + call('ZCARD', probes) <= room
  local keys = call('ZRANGE', turns, 0, room - 1)
  if #keys < room then
    for _, key in ipairs(call('ZRANGE', probes, 0, room - 1 - #keys)) do keys[#keys + 1] = key end
  end
  room = room - #keys
  for field in pairs(p) do keys[#keys + 1] = string.match(field, '^in_flight:(.*)$') end   -- their tasks come back
  for i = 1, #keys do
    local h = host(keys[i], name)
    if h.given_up == '' and keys[i] ~= last then
      h.given_up = 'host_unreachable'
      call('ZREM', P .. 'failing', keys[i])
      given = given + 1
    end
  end
  -- Whoever is found of it later, or replayed, gets all tries.
  if is_all then forget_failures(p) end
  return is_all
end
local rows = call('ZRANGE', P .. 'failing', '-inf', now - after_idle, 'BYSCORE', 'LIMIT', 0, 50, 'WITHSCORES')
for i = 1, #rows, 2 do
  local key, h = rows[i], host(rows[i])
  -- The shorter limit is for a host that never answered, that failed while others did answer, or that takes connections
  -- and hangs or refuses at the URLs which are left. Where all fell silent at once it is more likely our own network, and a crawl of
  -- one site must not be buried by five minutes of that.
  local since, most = tonumber(rows[i + 1]), after
  if since <= answered_at or (h.pages == 0 and h.robots ~= 'known')
    or h.failing == 'timeout' or h.failing == 'disconnected' or string.find(h.failing, '^http_') then
    most = after_idle
  end
  -- From its first failure to its last, not to now: while the crawl is paused or throttled nobody asks the host, and
  -- that time says nothing about it.
  local p = pace_of(h)
  local is_domain_down = p ~= h and p.failing ~= '' and p.failed_at - p.failing_since >= most
  if h.given_up ~= '' then
    call('ZREM', P .. 'failing', key)
  elseif (is_domain_down and give_up_domain(h.domain, p, key)) or (not is_domain_down and h.failed_at - since >= most) then
    h.given_up = (gate(h) == 'asked' and h.failing == 'robots') and 'robots_unreachable' or 'host_unreachable'
    call('ZREM', P .. 'failing', key)
    given = given + 1
  end
end
settle()

local buried = 0
while buried < limit do
  local key = call('ZRANGE', P .. 'giving_up', 0, 0)[1]
  if not key then break end
  local h = host(key)
  local is_empty = true
  for level = 0, (h.given_up == '') and -1 or 3 do   -- it may have been taken back: then nothing of it is buried
    while buried < limit do
      local task = call('LPOP', queue_key(key, level))
      if not task then break end
      local line = kind_of(task)
      h.queued = h.queued - 1
      count(line .. '.queued', -1)
      if line == 'robots' then h.robots = '' end
      if h.given_up == 'host_budget' then
        count(line .. '.dropped', 1)
        count(line .. '.dropped.host_budget', 1)
        seed_ended(task)
        visit_again(key, tostring(level), task)
      else
        seed_ended(task)
        local why = '; ' .. h.failures .. ' tries failed in a row, the last: ' .. h.failing
        if h.failing == '' and paces[h] then why = ' of any host of ' .. h.domain end
        bury(line, key, tostring(level), task, h.given_up, 'no answer of use' .. why, '', '')
      end
      buried = buried + 1
    end
    if buried >= limit then is_empty = h.queued <= 0 end
  end
  if is_empty then
    call('ZREM', P .. 'giving_up', key)
    -- All four lists are empty: a count that says otherwise would bring the host back here for ever. The totals still
    -- tell (audit, and finish says UNBALANCED).
    if h.given_up ~= '' then h.queued = 0 end
  end
end
settle()
flush_counts()
return {'OK', buried, given, call('ZCARD', P .. 'giving_up')}

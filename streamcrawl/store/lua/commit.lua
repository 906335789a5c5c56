#!lua flags=allow-oom
-- commit.lua: end a batch of entries, each with all that follows from it, and dispatch into the slots that it frees.
--
-- KEYS[1] state    hash     the crawl's state
-- ARGV[1] epoch    str      the epoch the caller joined with
-- ARGV[2] worker   str      who commits, for dead letters
-- ARGV[3] limit    int      tasks to dispatch at most afterwards
-- ARGV[4..] commit msgpack  one entry each:
--   {id, host, line, outcome, fetched, since_end_ms, block_ms, detail, links, items[, left_out[, server[, took_ms,
--   refusal[, url[, sketch]]]]]}
--   fetched       1 when a request went out: the host's delay counts from `since_end_ms` ago
--   block_ms      leave the whole host alone that long (Retry-After), 0 otherwise
--   detail        done page: {}, or what of the page is to be visited again: {'new', 'changed', 'unchanged' or 'failed', level,
--                 rest, ms until then}, or {'gone'}
--                 done sitemap: {flaw, …}, at most 8 words, each once | done robots: {text, ttl_ms, Crawl-delay in ms or 0[, keep_ms]}: keep_ms is how long the
--                 text outlives its time, 1 h if missing; longer than that it may be used while no other can be had
--                 retry: {delay_ms, level, task}
--                 unanswered: {level, task, reason, backoff_base_ms, backoff_max_ms, jitter_permille[, when_first,
--                 delay_ms, again, error]}: the host may be down, so no attempt is counted. `when_first` 'retry' or 'dead'
--                 says the fault may be this URL's alone: while the host failed less than twice in a row before, the
--                 task `again` is retried after delay_ms (or the task is buried) as if the host were well; with
--                 'dead' and a reason http_<status> also when nothing else of the host is left that could tell
--                 continued sitemap: {delay_ms, level, task}: the rest of it later, no attempt counted
--                 dead: {level, task, reason, error, last_status} | dropped: {reason} | redirected: {}
--   links         fingerprint, host key, level, rest, …: at most 250 in the whole call
--   items         stage, sink or retained log, record, …; for a stage `["Type",item]`; for a log see _items.lua
--   left_out      reason, count, …: links that are not followed, added to `links.<reason>`; a worker of an older version
--                 does not say
--   server        run_id of the server that took the links which were offered before; '' when none were
--   took_ms       how long the request took, connecting included, until the last byte; 0 when its time says nothing of
--                 what the host bears
--   refusal       '' or why the host's delay doubles: http_429, http_503 or timeout
--   url           of the page, for its items
--   sketch        of a done page: '' or what tells it from other pages of its host (_alike.lua)
--
-- Returns {'OK', {word, …}, moved, next_ms, dispatch word}, a word per entry:
--           DONE        acknowledged, deleted, everything written
--           LEASE_LOST  the entry was taken back, or this is a repeat: nothing was written for it
--           RESTARTED   the server is another process than `server`, and may have lost those links: nothing was written
--                       for it; the caller offers them again
--           INVALID     malformed, or of another host or line than the entry: nothing was written for it; the caller
--                       makes it a dead letter
--         {'GONE'}
-- Derives all keys of the frontier, `robots:<origin>`, `dead`, `stream:<stage>`, `stream:fetch:<sink>`,
-- `log:<name>`.
-- Repeat: harmless, LEASE_LOST.
--
-- One script, because two calls leave a gap: acknowledge first and a crash forgets the links, offer first and a crash
-- repeats the items. Allow-oom, because a full server must drain.
-- include _state
-- include _hosts
-- include _pace
-- include _alike
-- include _reasons
-- include _items
-- include _stream
-- include _seen
-- include _links
-- include _dispatch
-- include _process
-- Up to 1e12 (31 years in ms): beyond, sums leave what a double, ZADD and PX hold, and infinity is a whole number too.
local function is_int(value)
  return type(value) == 'number' and value >= 0 and value <= 1e12 and value == math.floor(value)
end
local function is_text(value) return type(value) == 'string' end
-- A page in level 0 would pass the robots gate; a task of another line would be counted out of a line it is not in.
local function is_task(line, level, task)
  return is_text(level) and string.find(level, line == 'robots' and '^0$' or '^[1-3]$') and is_text(task)
    and string.match(task, '^%[%d+,%d+,"(%l+)".*%]$') == line
end
local LINES = {page = true, robots = true, sitemap = true}
local function is_word(value) return is_text(value) and #value <= 32 and string.find(value, '^%l[%l_]*$') ~= nil end
local ROBOTS_SPARE_MS = 3600000   -- for workers that have a page of the host in hand
-- A robots.txt that cannot be had again: how long the last good copy is used before it is asked for once more.
local ROBOTS_AGAIN_MS = 600000
local VISITS = {new = true, changed = true, unchanged = true, failed = true}
local DETAIL = {
  done = function(line, d)
    if line == 'page' then
      if d[1] == nil or d[1] == 'gone' then return true end
      return VISITS[d[1]] == true and is_text(d[3]) and is_task('page', d[2], '[0,0,' .. d[3])
        and string.find(d[3], '^"page","/[^"]*",%d+,1,.*,%["again",%d+,"[^%[%]{}]*"%]%]$') ~= nil and is_int(d[4]) and d[4] > 0
    end
    if line == 'sitemap' then
      for i = 1, #d do if not is_word(d[i]) then return false end end
      return #d <= 8
    end
    return is_text(d[1]) and is_int(d[2]) and d[2] > 0 and is_int(d[3])
      and (d[4] == nil or is_int(d[4]) and d[4] >= ROBOTS_SPARE_MS)
  end,
  retry = function(line, d) return is_int(d[1]) and is_task(line, d[2], d[3]) end,
  continued = function(line, d) return line == 'sitemap' and is_int(d[1]) and is_task(line, d[2], d[3]) end,
  unanswered = function(line, d)
    if not (is_task(line, d[1], d[2]) and is_text(d[3]) and is_int(d[4]) and is_int(d[5]) and is_int(d[6])) then return false end
    return d[7] == nil or (d[7] == 'retry' or d[7] == 'dead') and is_int(d[8]) and is_task(line, d[1], d[9]) and is_text(d[10])
  end,
  -- Any text will do for a task here: one that cannot be read must be able to end, too.
  dead = function(_, d) return is_text(d[1]) and is_text(d[2]) and is_text(d[3]) and is_text(d[4]) and is_text(d[5]) end,
  -- Not for robots: with neither a verdict nor a robots task the gate would stay shut for ever.
  dropped = function(line, d) return line ~= 'robots' and is_text(d[1]) end,
  redirected = function(line) return line ~= 'robots' end,
}

-- The entries of the batch, read with one command where it is a fair part of all that is in flight: each read goes
-- through half of a node of the stream. What is not among them is read by itself. No entry begins or ends but by
-- `leave`, so a second commit of one finds it here as well, and is LEASE_LOST.
local read_ahead = {}
local function read_batch(commits)
  local first, last
  for i = 1, #commits do
    local ms, seq = string.match(commits[i] and is_id(commits[i][1]) and commits[i][1] or '', '^(%d+)%-(%d+)$')
    if ms then
      ms, seq = tonumber(ms), tonumber(seq)
      if not first or ms < first.ms or (ms == first.ms and seq < first.seq) then first = {ms = ms, seq = seq, id = commits[i][1]} end
      if not last or ms > last.ms or (ms == last.ms and seq > last.seq) then last = {ms = ms, seq = seq, id = commits[i][1]} end
    end
  end
  local slots = tonumber(S.slots) or 0
  if not last or #commits < 2 or slots > 4 * #commits then return end
  local rows = call('XRANGE', STREAM, first.id, last.id, 'COUNT', math.max(slots, #commits))
  for i = 1, #rows do read_ahead[rows[i][1]] = rows[i][2] end
end

local function is_valid(c)
  if type(c) ~= 'table' or not is_id(c[1]) or not is_text(c[2])
    or not LINES[c[3]] or not is_text(c[4]) or not is_int(c[5]) or not is_int(c[6])
    or not is_int(c[7]) or type(c[8]) ~= 'table' or type(c[9]) ~= 'table' or not are_items(c[10])
    or not (c[12] == nil or is_text(c[12])) or not (c[13] == nil or is_int(c[13]))
    or not (c[14] == nil or c[14] == '' or REFUSALS[c[14]]) or not (c[16] == nil or c[16] == '' or is_sketch(c[16])) then
    return false
  end
  local check = DETAIL[c[4]]
  if not check or not check(c[3], c[8]) or bad_link(c[9]) > 0 then return false end
  if not are_counts(c[11] or {}) then return false end
  -- Another host's in_flight, or another line's count, would go down for it.
  local fields = read_ahead[c[1]]
  if not fields then
    local entry = call('XRANGE', STREAM, c[1], c[1])[1]
    fields = entry and entry[2]
  end
  c.task, c.level = fields and fields[6] or '', fields and fields[4] or ''
  return not fields or (fields[2] == c[2] and kind_of(c.task) == c[3])
end

local ACT = {}
function ACT.done(c, h)
  count(c[3] .. '.done', 1)
  seed_ended(c.task)
  if c[3] == 'page' then
    h.pages = h.pages + 1
    if c[8][1] then count('page.visits.' .. c[8][1], 1) end
    if c[8][3] then visit_later(c[2], c[8][2], c[8][3], c[8][4]) end
    if c[16] and c[16] ~= '' then said(h, c[16], string.find(c.task, '["again",', 1, true) ~= nil) end
  elseif c[3] == 'sitemap' then
    for i = 1, #c[8] do count('sitemap.flawed.' .. c[8][i], 1) end
  else
    call('SET', P .. 'robots:' .. c[2], c[8][1], 'PX', c[8][2] + (c[8][4] or ROBOTS_SPARE_MS))
    h.robots, h.robots_until, h.delay = 'known', now + c[8][2], c[8][3]
  end
end
local function delay(c, as)
  call('ZADD', P .. 'delayed', now + c[8][1], 'fetch|' .. c[8][2] .. '|' .. c[2] .. '|' .. c[8][3])
  count(c[3] .. '.delayed', 1)
  count(c[3] .. as, 1)
end
function ACT.retry(c) delay(c, '.retried') end
function ACT.continued(c) delay(c, '.continued') end
local function die(c, h, level, task, reason, error, status)
  if c[3] == 'robots' then h.robots, h.given_up = '', 'robots_unreachable' end   -- no gate opens: its pages follow
  -- By the task of the entry: what the caller names may be anything.
  seed_ended(c.task)
  bury(c[3], c[2], level, task, reason, error, status, ARGV[2])
end
function ACT.dead(c, h) die(c, h, unpack(c[8], 1, 5)) end
-- RFC 9309 section 2.4: a copy that is too old may be used while robots.txt is unreachable. The task ends, because the
-- gate that opens again asks with a new one.
local function go_on_with_old_robots(c, h)
  if c[3] ~= 'robots' or call('PTTL', P .. 'robots:' .. c[2]) <= ROBOTS_SPARE_MS then return false end
  h.robots, h.robots_until = 'known', now + ROBOTS_AGAIN_MS
  count('robots.dropped', 1)
  count('robots.dropped.old_copy', 1)
  return true
end
-- Does it speak of all hosts of a domain? A connection that is not had (no address, refused, no TLS) is the host's own
-- affair: of ten thousand that are gone each would slow down those that are well.
local OF_ALL = {timeout = true, disconnected = true}
local function is_of_all(c)
  local d = c[8]
  return c[4] ~= 'unanswered' or d[7] ~= nil or OF_ALL[d[3]] or (c[14] or '') ~= '' and d[3] ~= 'connect_timeout'
end
function ACT.unanswered(c, h)
  local level, task, reason, base, most, jitter, when_first, delay_ms, again, error = unpack(c[8])
  local is_kept = go_on_with_old_robots(c, h)
  -- The host did answer: with nothing that can be used, so nothing else is held back for it.
  if is_kept and reason == 'robots' then return end
  h.failures, h.failed_at = h.failures + 1, now
  local p = pace_of(h)
  local is_of_domain = p ~= h and is_of_all(c)
  if is_of_domain then p.failures, p.failed_at = p.failures + 1, now end
  local status = string.match(reason, '^http_(%d+)$') or ''
  -- A page that always answers so must end when nothing of its host is left to compare it with.
  local is_last = when_first == 'dead' and status ~= '' and h.queued <= 0 and h.in_flight <= 0
  if when_first and (math.max(h.failures, p.failures) <= 2 or is_last) then
    if when_first == 'retry' then
      call('ZADD', P .. 'delayed', now + delay_ms, 'fetch|' .. level .. '|' .. c[2] .. '|' .. again)
      count(c[3] .. '.delayed', 1)
      count(c[3] .. '.retried', 1)
    else
      die(c, h, level, task, reason, error, status)
    end
    return
  end
  h.failing = reason
  if h.given_up == '' then call('ZADD', P .. 'failing', 'NX', now, c[2]) end
  local function back_off(x)
    local backoff = math.min(most, base * 2 ^ math.min(x.failures - 1, 30))
    x.blocked_until = math.max(x.blocked_until, now + math.floor(backoff * (500 + math.min(jitter, 1000) / 2) / 1000))
  end
  back_off(h)
  if is_of_domain and p.failures >= 3 then
    if p.failing == '' then p.failing_since = now end
    p.failing = reason
    back_off(p)
  end
  if is_kept then return end
  -- A task that may itself be the cause goes to the end: asked again and again at the head it would pass for a host that
  -- is down, and all that waits behind it would be given up.
  if when_first then push_tail(c[2], h, level, task) else push_head(c[2], h, level, task) end
  count(c[3] .. '.queued', 1)
  count(c[3] .. '.unanswered', 1)
end
function ACT.dropped(c)
  seed_ended(c.task)
  count_dropped(c[3], c[8][1])
  if c[8][1] == 'robots' then visit_again(c[2], c.level, c.task) end
end
function ACT.redirected(c)
  seed_ended(c.task)
  count(c[3] .. '.dropped', 1)
  count(c[3] .. '.dropped.redirected', 1)
  visit_again(c[2], c.level, c.task)   -- a host that is being moved or mended sends all its pages to one other
end

local words, touched, ended, is_answered = {}, {}, {}, false
local commits = {}
for n = 4, #ARGV do
  local is_read, c = pcall(cmsgpack.unpack, ARGV[n])
  commits[#commits + 1] = is_read and type(c) == 'table' and c
end
read_batch(commits)
for n = 1, #commits do
  local c = commits[n]
  if not c or not is_valid(c) then
    words[#words + 1] = 'INVALID'
  elseif is_other_process(c[12] or '') then
    words[#words + 1] = 'RESTARTED'
  elseif not leave(c[2], c[3], c[1], ended) then
    words[#words + 1] = 'LEASE_LOST'
    count(c[3] .. '.lease_lost', 1)
  else
    local h = host(c[2])
    local p = pace_of(h)
    local refusal = c[14] or ''
    if c[5] == 1 and refusal ~= '' and (p == h or is_of_all(c)) then
      refused(p, refusal, now - math.min(c[6], 60000) - (c[13] or 0))
    elseif c[5] == 1 and c[13] and c[13] > 0 then
      answered_in(p, c[13])
    end
    if c[5] == 1 and c[4] ~= 'unanswered' then
      is_answered = true
      if h.failures > 0 then
        h.failures, h.failing, h.failed_at = 0, '', 0
        call('ZREM', P .. 'failing', c[2])
      end
      if p ~= h then p.failures, p.failing, p.failed_at, p.failing_since = 0, '', 0, 0 end
    end
    if c[7] > 0 then p.blocked_until = math.max(p.blocked_until, now + c[7]) end
    ACT[c[4]](c, h)
    -- After the act: the delay that a robots verdict brings holds for the next fetch already.
    if c[5] == 1 then fetch_ended(h, now - math.min(c[6], 60000)) end
    local links, left_out = c[9], c[11] or {}
    for i = 1, #left_out, 2 do count('links.' .. left_out[i], left_out[i + 1]) end
    for i = 1, #links, 4 do offer(links[i], links[i + 1], links[i + 2], links[i + 3]) end
    emit(c[10], is_text(c[15]) and c[15] or c[2], touched, 'page')
    words[#words + 1] = 'DONE'
  end
end
-- Before anything counts what waits in the stream.
for i = 1, #ended, 1000 do call('XDEL', STREAM, unpack(ended, i, math.min(i + 999, #ended))) end
watch_marks(touched)
trim_written()
stop_when_full()
if is_answered then call('HSET', KEYS[1], 'answered_at', now) end
flush_seen()
local moved, next_ms, word = dispatch(tonumber(ARGV[3]))
flush_counts()
return {'OK', words, moved, next_ms, word}

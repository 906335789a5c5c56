#!lua flags=allow-oom
-- commit.lua: end a batch of entries, each with all that follows from it, and dispatch into the slots that it frees.
--
-- KEYS[1] state    hash     the crawl's state
-- ARGV[1] epoch    str      the epoch the caller joined with
-- ARGV[2] worker   str      who commits, for dead letters
-- ARGV[3] limit    int      tasks to dispatch at most afterwards
-- ARGV[4..] commit msgpack  one entry each:
--   {id, host, line, outcome, fetched, since_end_ms, block_ms, detail, links, items, left_out, server, took_ms, refusal,
--   url, sketch}, in the order of their ids, by which they are read with one command. From `detail` on nil says that there
--   is none, and the last ones may be missing: each value costs the server, and most pages have few of them
--   fetched       1 when a request went out: the host's delay counts from `since_end_ms` ago
--   block_ms      leave the whole host alone that long (Retry-After), 0 otherwise
--   detail        done page: nil, or what of the page is to be visited again: {'new', 'changed', 'unchanged' or 'failed', level,
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
--   left_out      reason, count, …: links that are not followed, added to `links.<reason>`
--   server        run_id of the server that took the links which were offered before
--   took_ms       how long the request took, connecting included, until the last byte; when its time says something of
--                 what the host bears
--   refusal       why the host's delay doubles: http_429, http_503 or timeout
--   url           of the page, for its items
--   sketch        of a done page: what tells it from other pages of its host (_alike.lua)
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
  return type(value) == 'number' and value >= 0 and value <= 1e12 and value % 1 == 0
end
local function is_text(value) return type(value) == 'string' end
-- A page in level 0 would pass the robots gate; a task of another line would be counted out of a line it is not in.
local function is_task(line, level, task)
  return is_text(level) and string.find(level, line == 'robots' and '^0$' or '^[1-3]$') and is_text(task)
    and string.match(task, '^%[%d+,%d+,"(%l+)".*%]$') == line
end
local LINES, NONE = {page = true, robots = true, sitemap = true}, {}
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
  local slots, first, last = tonumber(S.slots) or 0, commits[1], commits[#commits]
  if #commits < 2 or slots > 4 * #commits or not (first and last and is_id(first[1]) and is_id(last[1])) then return end
  local rows = call('XRANGE', STREAM, first[1], last[1], 'COUNT', max(slots, #commits))
  for i = 1, #rows do read_ahead[rows[i][1]] = rows[i][2] end
end

-- Of the entry that was judged last; '' when it is not there.
local entry_level, entry_task = '', ''
local function is_valid(c)
  local id, line, check = c[1], c[3], DETAIL[c[4]]
  local fields = read_ahead[id]
  if not fields then
    if not is_id(id) then return false end
    local entry = call('XRANGE', STREAM, id, id)[1]
    fields = entry and entry[2]
  end
  entry_level, entry_task = fields and fields[4] or '', fields and fields[6] or ''
  -- Another host's in_flight, or another line's count, would go down for it.
  if fields and not (fields[2] == c[2] and kind_of(entry_task) == line) then return false end
  return is_text(c[2]) and LINES[line] and is_int(c[5]) and is_int(c[6]) and is_int(c[7])
    and type(c[8] or NONE) == 'table' and check and check(line, c[8] or NONE) and not (c[9] and bad_link(c[9]) > 0)
    and not (c[10] and not are_items(c[10])) and not (c[11] and not are_counts(c[11]))
    and not (c[12] and not is_text(c[12])) and not (c[13] and not is_int(c[13])) and not (c[14] and not REFUSALS[c[14]])
    and not (c[16] and not is_sketch(c[16]))
end

local ACT = {}
function ACT.done(c, h)
  count(c[3] .. '.done', 1)
  seed_ended(entry_task)
  if c[3] == 'page' then
    h.pages = h.pages + 1
    local visit = c[8]
    if visit and visit[1] then count('page.visits.' .. visit[1], 1) end
    if visit and visit[3] then visit_later(c[2], visit[2], visit[3], visit[4]) end
    if c[16] then said(h, c[16], find(entry_task, '["again",', 1, true) ~= nil) end
  elseif c[3] == 'sitemap' then
    for _, flaw in ipairs(c[8] or NONE) do count('sitemap.flawed.' .. flaw, 1) end
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
  seed_ended(entry_task)
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
  return c[4] ~= 'unanswered' or d[7] ~= nil or OF_ALL[d[3]] or c[14] and d[3] ~= 'connect_timeout'
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
  seed_ended(entry_task)
  count_dropped(c[3], c[8][1])
  if c[8][1] == 'robots' then visit_again(c[2], entry_level, entry_task) end
end
function ACT.redirected(c)
  seed_ended(entry_task)
  count(c[3] .. '.dropped', 1)
  count(c[3] .. '.dropped.redirected', 1)
  visit_again(c[2], entry_level, entry_task)   -- a host that is being moved or mended sends all its pages to one other
end

local touched, ended, is_answered = {}, {}, false
-- End one entry; returns its word.
local function end_entry(c)
  if not c or not is_valid(c) then return 'INVALID' end
  if c[12] and is_other_process(c[12]) then return 'RESTARTED' end
  local h = leave(c[2], c[3], c[1], ended)
  if not h then
    count(c[3] .. '.lease_lost', 1)
    return 'LEASE_LOST'
  end
  local p, is_fetched, took, refusal = pace_of(h), c[5] == 1, c[13] or 0, c[14]
  local ended_at = now - min(c[6], 60000)
  if is_fetched and refusal and (p == h or is_of_all(c)) then
    refused(p, refusal, ended_at - took)
  elseif is_fetched and took > 0 then
    answered_in(p, took)
  end
  if is_fetched and c[4] ~= 'unanswered' then
    is_answered = true
    if h.failures > 0 then
      h.failures, h.failing, h.failed_at = 0, '', 0
      call('ZREM', P .. 'failing', c[2])
    end
    if p ~= h then p.failures, p.failing, p.failed_at, p.failing_since = 0, '', 0, 0 end
  end
  if c[7] > 0 then p.blocked_until = max(p.blocked_until, now + c[7]) end
  ACT[c[4]](c, h)
  -- After the act: the delay that a robots verdict brings holds for the next fetch already.
  if is_fetched then fetch_ended(h, ended_at) end
  local links, items, left_out = c[9] or NONE, c[10], c[11] or NONE
  for i = 1, #left_out, 2 do count('links.' .. left_out[i], left_out[i + 1]) end
  for i = 1, #links, 4 do offer(links[i], links[i + 1], links[i + 2], links[i + 3]) end
  if items then emit(items, is_text(c[15]) and c[15] or c[2], touched, 'page') end
  return 'DONE'
end

local words, commits = {}, {}
for n = 4, #ARGV do
  local is_read, c = pcall(cmsgpack.unpack, ARGV[n])
  commits[n - 3] = is_read and type(c) == 'table' and c
end
read_batch(commits)
for n = 1, #commits do words[n] = end_entry(commits[n]) end
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

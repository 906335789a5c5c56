#!lua flags=allow-oom
-- stage_commit.lua: end a batch of entries of one stage, each with all that follows from it.
--
-- KEYS[1] state    hash     the crawl's state
-- ARGV[1] epoch    str      the epoch the caller joined with
-- ARGV[2] worker   str      who commits, for dead letters
-- ARGV[3] stage    str      the stage
-- ARGV[4] limit    int      tasks to dispatch at most when there are new links
-- ARGV[5..] commit msgpack  one entry each:
--   {id, outcome, detail, links, items, left_out, server}
--   detail        done: {} | retry: {delay_ms} | dead: {reason, error} | dropped: {reason}
--   links, items, left_out, server   as commit.lua takes them, at most 250 links in the whole call
--
-- Returns {'OK', {word, …}, throttled}, a word per entry:
--           DONE        acknowledged, deleted, everything written
--           LEASE_LOST  the entry was taken back, or this is a repeat: nothing was written for it
--           RESTARTED   the server is another process than `server`, which took links before: they are offered again
--           INVALID     malformed: nothing was written for it; the caller makes it a dead letter
--         and the streams that are over their mark, with commas between
--         {'GONE'}
-- Derives all keys of the frontier, `dead`, `delayed`, `stream:<stage>`, `stream:fetch:<sink>`, `log:<name>`.
-- Repeat: harmless, LEASE_LOST.
--
-- One script, because two calls leave a gap: acknowledge first and a crash loses what follows, write first and a crash
-- repeats it. Allow-oom, because a full server must drain.
-- include _state
-- include _hosts
-- include _items
-- include _stream
-- include _seen
-- include _links
-- include _dispatch
-- include _process
-- include _reasons
local stage = ARGV[3]
local function is_text(value) return type(value) == 'string' end
-- A reason is part of the name of a counter.
local function is_reason(value) return is_text(value) and string.find(value, '^[%w_]+$') ~= nil and #value <= 64 end
local DETAIL = {
  done = function() return true end,
  retry = function(d) return type(d[1]) == 'number' and d[1] >= 0 and d[1] <= 1e12 and d[1] == math.floor(d[1]) end,
  dead = function(d) return is_reason(d[1]) and is_text(d[2]) end,
  dropped = function(d) return is_reason(d[1]) end,
}
local function is_valid(c)
  if not STAGES[stage] or type(c) ~= 'table' or not is_id(c[1]) or not is_text(c[2]) or type(c[3]) ~= 'table'
    or bad_link(c[4]) > 0 or not are_items(c[5]) or type(c[6]) ~= 'table' or not is_text(c[7]) then
    return false
  end
  local check = DETAIL[c[2]]
  return check ~= nil and check(c[3]) and are_counts(c[6])
end

local ACT = {}
function ACT.done() count(stage .. '.done', 1) end
function ACT.retry(c, f)
  f.attempt = f.attempt + 1
  delay_item(stage, c[1], f, c[3][1])
end
function ACT.dead(c, f) bury_item(stage, f, c[3][1], c[3][2], ARGV[2]) end
function ACT.dropped(c)
  count_dropped(stage, c[3][1])
end

local words, changed, has_links = {}, {stage}, false
changed[stage] = true
for n = 5, #ARGV do
  local is_read, c = pcall(cmsgpack.unpack, ARGV[n])
  if not is_read or not is_valid(c) then
    words[#words + 1] = 'INVALID'
  elseif is_other_process(c[7]) then
    words[#words + 1] = 'RESTARTED'
  else
    local entry = call('XRANGE', P .. 'stream:' .. stage, c[1], c[1])[1]
    local f = entry and item_in(entry[2])
    if not f or not leave_item(stage, c[1], f.item) then
      words[#words + 1] = 'LEASE_LOST'
      count(stage .. '.lease_lost', 1)
    else
      ACT[c[2]](c, f)
      local links, left_out = c[4], c[6]
      for i = 1, #left_out, 2 do count('links.' .. left_out[i], left_out[i + 1]) end
      for i = 1, #links, 4 do offer(links[i], links[i + 1], links[i + 2], links[i + 3]) end
      has_links = has_links or #links > 0
      emit(c[5], f.url, changed, stage)
      words[#words + 1] = 'DONE'
    end
  end
end
watch_marks(changed)
trim_written()
if has_links then
  stop_when_full()
  flush_seen()
  dispatch(tonumber(ARGV[4]))
end
settle()
flush_counts()
return {'OK', words, S.throttled or ''}

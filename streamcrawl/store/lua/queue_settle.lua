#!lua flags=allow-oom
-- queue_settle.lua: end deliveries: done, or to be tried again, or dead, or given back.
--
-- KEYS[1] state   hash     the queue's state
-- ARGV[1] epoch   str      the epoch the caller joined with
-- ARGV[2] member  str      who holds them
-- ARGV[3] number  int      of this call; a member makes one after another
-- ARGV[4] done    msgpack  level, {id, …}, …: at most 500 ids in all
-- ARGV[5] others  msgpack  level, id, how, number, error, …: at most 100
--                          how 'retry': again after so many ms, or dead once `attempts_max` are used up
--                              'dead'   a dead letter, reason 'failed' (number 0) or 'codec' (1)
--                              'back'   given back untried: no attempt is counted
--
-- Returns {'OK', lost, left, closed}  lost: positions (done first, then others, from 1) that were not delivered any more, joined
--                                     by commas; left: unsettled items of the queue; closed: 1 or 0
--         {'GONE'}
-- Derives `stream:<level>`, `delayed`, `dead`, `settles`, `totals`. Cost O(ids).
-- Repeat: harmless: the last answer of each member is kept under its number.
-- include _queue
local kept_number, kept_lost = string.match(call('HGET', P .. 'settles', ARGV[2]) or '', '^(%d+) (.*)$')
-- An older number is a call that the server reads late, on a connection that was given up: it was repeated since.
if kept_number and tonumber(kept_number) >= tonumber(ARGV[3]) then return {'OK', kept_lost, unsettled(), is_closed and 1 or 0} end
local lost, position = {}, 0
local function lose()
  lost[#lost + 1] = position
  count('lease_lost', 1)
end
local done = cmsgpack.unpack(ARGV[4])
for i = 1, #done, 2 do
  local stream, ended = stream_of(done[i]), {}
  for _, id in ipairs(done[i + 1]) do
    position = position + 1
    if is_id(id) and call('XACK', stream, 'workers', id) == 1 then ended[#ended + 1] = id else lose() end
  end
  if #ended > 0 then
    call('XDEL', stream, unpack(ended))
    count('done', #ended)
  end
end
local others = cmsgpack.unpack(ARGV[5])
for i = 1, #others, 5 do
  local level, id, how, number, error = unpack(others, i, i + 4)
  position = position + 1
  local f
  if is_id(id) then f = leave(level, id) end
  if not f then
    lose()
  elseif how == 'back' then
    enter(level, f)
  else
    f.attempts = f.attempts + 1
    if how == 'dead' then bury(level, f, number == 1 and 'codec' or 'failed', error)
    elseif f.attempts >= tonumber(S.attempts_max) then bury(level, f, 'attempts', error)
    else
      count('retried', 1)
      if number > 0 then delay(level, f, number, id) else enter(level, f) end
    end
  end
end
flush_counts()
local words = table.concat(lost, ',')
call('HSET', P .. 'settles', ARGV[2], ARGV[3] .. ' ' .. words)
return {'OK', words, unsettled(), is_closed and 1 or 0}

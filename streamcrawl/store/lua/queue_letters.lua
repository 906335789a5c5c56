#!lua flags=allow-oom
-- queue_letters.lua: send dead letters of a TaskQueue through it again, or remove them.
--
-- KEYS[1] state  hash     the queue's state
-- ARGV[1] epoch  str      the epoch the caller joined with
-- ARGV[2] how    str      'replay' | 'purge'
-- ARGV[3] ids    msgpack  of dead letters, at most 250
--
-- Returns {'OK', n}     so many; others are no dead letters (any more)
--         {'CLOSED', 0} nobody may take what would be replayed: reopen it first
--         {'GONE'}
-- Derives `dead`, `stream:<level>`, `totals`. Repeat: harmless, n is 0.
-- include _queue
if ARGV[2] == 'replay' and is_closed then return {'CLOSED', 0} end
local n = 0
for _, id in ipairs(cmsgpack.unpack(ARGV[3])) do
  local letter = is_id(id) and call('XRANGE', P .. 'dead', id, id)[1]
  if letter then
    local f = {}
    for i = 1, #letter[2], 2 do f[letter[2][i]] = letter[2][i + 1] end
    call('XDEL', P .. 'dead', id)
    count('dead', -1)
    if ARGV[2] == 'replay' then
      enter(f.level, {item = f.item, attempts = 0, crashes = 0, put_ms = f.put_ms})
      count('replayed', 1)
    else
      count('purged', 1)
    end
    n = n + 1
  end
end
flush_counts()
return {'OK', n}

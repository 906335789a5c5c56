#!lua flags=allow-oom
-- hand_back.lua: give entries back that will not be finished: no attempt and no crash is counted.
--
-- KEYS[1] state   hash     the crawl's state
-- ARGV[1] epoch   str      the epoch the caller joined with
-- ARGV[2] stream  str      what follows the prefix, `stream:fetch` or `stream:fetch:<sink>`
-- ARGV[3] ids     msgpack  entry ids, at most 250
-- ARGV[4] how     str      'unbegun'
--                          'unjudged'  not begun for want of a robots verdict: the host asks for it again
--                          'broken'    its fetch was broken off: the host's delay counts from here
-- ARGV[5] wait_ms int      leave their hosts alone that long; a worker of an older version does not say
-- ARGV[6] reason  str      why they wait, counted as `waited.<reason>`; missing or '' counts nothing
--
-- Returns {'OK', back} · {'GONE'}; a row whose entry is no longer there is ended, and not counted
-- Derives the stream, `queue:<host>:<level>`, `host:<host>`, `schedule`. Repeat: harmless, back is 0.
-- include _state
-- include _hosts
-- include _items
-- include _stream
local stream, back = P .. ARGV[2], 0
local wait, reason = tonumber(ARGV[5]) or 0, ARGV[6] or ''
local ids = cmsgpack.unpack(ARGV[3])
for i = #ids, 1, -1 do   -- last first: each goes to the head of its queue, so the order stays
  local entry = call('XRANGE', stream, ids[i], ids[i])[1]
  if not entry then
    call('XACK', stream, 'workers', ids[i])   -- deleted by hand: its row would stay in its worker's hands for ever
  elseif take_back(stream, ids[i], entry[2], false, false, '', ARGV[4] == 'broken') then
    back = back + 1
    if stream == STREAM then
      local h = host(entry[2][2])
      -- Without it the host, due as before, would have the same task dispatched again at once, over and over.
      if wait > 0 then h.due = math.max(h.due, now + wait) end
      if reason ~= '' then
        count(kind_of(entry[2][6]) .. '.waited', 1)
        count(kind_of(entry[2][6]) .. '.waited.' .. reason, 1)
      end
    end
    if ARGV[4] == 'unjudged' and stream == STREAM then
      local h = host(entry[2][2])
      if h.robots == 'known' then h.robots, h.robots_until = '', 0 end
    end
  end
end
settle()
flush_counts()
return {'OK', back}

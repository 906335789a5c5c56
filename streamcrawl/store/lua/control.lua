#!lua flags=allow-oom
-- control.lua: set fields of the state while the crawl runs: closed, stopped, paused, a limit.
--
-- KEYS[1] state   hash     the crawl's state
-- ARGV[1] epoch   str      the epoch the caller joined with
-- ARGV[2] values  msgpack  field, value, …; '' removes the field
--
-- Returns {'OK'} · {'GONE'}
-- Derives no other key. Repeat: harmless.
-- include _state
local values = cmsgpack.unpack(ARGV[2])
for i = 1, #values, 2 do
  if values[i + 1] == '' then call('HDEL', KEYS[1], values[i]) else call('HSET', KEYS[1], values[i], values[i + 1]) end
end
return {'OK'}

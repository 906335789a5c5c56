#!lua flags=allow-oom
-- control.lua: set fields of the state while the crawl runs: closed, stopped, paused, a limit.
--
-- KEYS[1] state   hash     the crawl's state
-- ARGV[1] epoch   str      the epoch the caller joined with
-- ARGV[2] values  msgpack  field, value, …; '' removes the field
--
-- Returns {'OK'} · {'GONE'}
-- Derives no other key. Repeat: harmless.
--
-- Since when it is paused or stopped stands beside it, in `paused_at` and `stopped_at`: ms of the wall clock; how long that
-- lasted in all, in `held_ms:<word>`.
-- include _state
local values = cmsgpack.unpack(ARGV[2])
for i = 1, #values, 2 do
  local field, value = values[i], values[i + 1]
  if value == '' then call('HDEL', KEYS[1], field) else call('HSET', KEYS[1], field, value) end
  if field == 'paused' or field == 'stopped' then
    local function word_of(said) return field == 'paused' and 'paused' or string.lower(said) end
    if S[field] and S[field] ~= '' and S[field] ~= tostring(value) then let_go(word_of(S[field])) end
    if value == '' then call('HDEL', KEYS[1], field .. '_at')
    else
      if S[field] ~= value then call('HSET', KEYS[1], field .. '_at', wall) end
      hold(word_of(tostring(value)))
    end
  end
end
return {'OK'}

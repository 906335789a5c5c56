#!lua flags=allow-oom
-- flow.lua: tell a crawl of the stages of a program, of what feeds each stage and output, and of its retained logs.
--
-- KEYS[1] state   hash     the crawl's state
-- ARGV[1] epoch   str      the epoch the caller joined with
-- ARGV[2] stages  msgpack  names
-- ARGV[3] flow    str      JSON: stage or output -> {from: lines that feed it, batch: items in one call; for replays: logs
--                          that hold its items, takes: types, any when missing, is_results: only what no stage took}
-- ARGV[4] logs    msgpack  name, ms for which it keeps an entry, …
--
-- Returns {'OK', names}  of all stages there are now, with commas between
--         {'GONE'}
-- Derives `stream:<stage>`. Repeat: harmless.
--
-- Stages and logs are only added: workers of another version of the program may still write to one that this one does not
-- have. Whoever comes last says how long a log keeps.
-- include _state
local names = {}
for name in string.gmatch(S.stages or '', '[^,]+') do
  names[#names + 1] = name
  names[name] = true
end
for _, name in ipairs(cmsgpack.unpack(ARGV[2])) do
  if not names[name] then
    names[#names + 1] = name
    names[name] = true
  end
  redis.pcall('XGROUP', 'CREATE', P .. 'stream:' .. name, 'workers', '0', 'MKSTREAM')   -- BUSYGROUP: it is there
end
local flow = cjson.decode(call('HGET', KEYS[1], 'flow') or '{}')
for name, row in pairs(cjson.decode(ARGV[3])) do flow[name] = row end
if #names > 0 then call('HSET', KEYS[1], 'stages', table.concat(names, ','), 'flow', cjson.encode(flow)) end
local kept, logs = {}, {}
local function know(name, ms)
  if not kept[name] then logs[#logs + 1] = name end
  kept[name] = ms
end
for name, ms in string.gmatch(S.logs or '', '([^=,]+)=(%d+)') do know(name, ms) end
local told = cmsgpack.unpack(ARGV[4])
for i = 1, #told, 2 do know(told[i], string.format('%.0f', told[i + 1])) end
for i = 1, #logs do logs[i] = logs[i] .. '=' .. kept[logs[i]] end
if #logs > 0 then call('HSET', KEYS[1], 'logs', table.concat(logs, ',')) end
return {'OK', table.concat(names, ',')}

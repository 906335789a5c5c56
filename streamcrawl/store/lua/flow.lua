#!lua flags=allow-oom
-- flow.lua: tell a crawl of the stages of a program, and of what feeds each stage and output.
--
-- KEYS[1] state   hash     the crawl's state
-- ARGV[1] epoch   str      the epoch the caller joined with
-- ARGV[2] stages  msgpack  names
-- ARGV[3] flow    str      JSON: stage or output -> {from: lines that feed it, batch: items in one call}
--
-- Returns {'OK', names}  of all stages there are now, with commas between
--         {'GONE'}
-- Derives `stream:<stage>`. Repeat: harmless.
--
-- Stages are only added: workers of another version of the program may still write to one that this one does not have.
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
return {'OK', table.concat(names, ',')}

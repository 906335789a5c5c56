-- fragment _lease.lua: may an entry be taken back by its idle time now? Needs `call`, `wall` and the hash KEYS[1].
--
-- Called at each tick of reclaim, for the stream and the name under which its ticks are kept. Returns for how many ms
-- nobody loses a lease yet; 0 when the idle times tell who is dead.
local function hold_ms(stream, name, lease)
  local tick, hold, fix = 'reclaim_at:' .. name, 'reclaim_hold:' .. name, 'reclaim_fix:' .. name
  local kept = call('HMGET', KEYS[1], tick, hold, fix)
  local last, held_until, fix_from = tonumber(kept[1]), tonumber(kept[2]) or 0, kept[3]
  call('HSET', KEYS[1], tick, wall)
  if last and wall < last then
    fix_from = '-'
    call('HSET', KEYS[1], fix, fix_from)
  end
  if fix_from then
    -- The clock went back: rows stamped by the old one would look fresh until it is there again, an hour after their worker
    -- died. A stamp in the future reads as idle 0, like one of just now, to which a new stamp does nothing.
    local rows = redis.pcall('XPENDING', stream, 'workers', fix_from, '+', 1000)
    local ids_of = {}
    if rows.err then rows = {} end
    for _, row in ipairs(rows) do
      if row[3] == 0 then
        ids_of[row[2]] = ids_of[row[2]] or {'XCLAIM', stream, 'workers', row[2], 0}
        table.insert(ids_of[row[2]], row[1])
      end
    end
    for _, query in pairs(ids_of) do
      query[#query + 1] = 'IDLE' query[#query + 1] = 0 query[#query + 1] = 'JUSTID'
      call(unpack(query))
    end
    if #rows == 1000 then call('HSET', KEYS[1], fix, '(' .. rows[1000][1]) else call('HDEL', KEYS[1], fix) end
  end
  if not last or wall - last > lease / 2 or wall < last then
    -- Whoever is alive could not renew during that gap either: give everybody one whole lease to do it.
    held_until = wall + lease
    call('HSET', KEYS[1], hold, held_until)
  end
  return (wall < held_until and held_until - wall <= lease) and held_until - wall or 0
end

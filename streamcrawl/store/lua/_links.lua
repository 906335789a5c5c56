-- fragment _links.lua: are links well formed? Checked before the first write, because Lua does not roll back. Needs
-- _state and _hosts.
--
-- Returns 0, or which one is not; the 251st of a list is none either: it would take the server too long.
-- Not robots: the gate alone makes those.
local bad_link
do
  local OFFERED, OFFERED_IN = {page = true, sitemap = true}, {['1'] = true, ['2'] = true, ['3'] = true}
  -- Host keys as callers name them that were found well formed: most links of a call are on few hosts.
  local good_names = {}
  local function is_host_name(name)
    local key = type(name) == 'string' and named(name)
    local is_good = type(key) == 'string' and find(key, '^%l[%w+.-]*://[^/|]+$') ~= nil
    if is_good then good_names[name] = true end
    return is_good
  end
  function bad_link(links)
    if type(links) ~= 'table' or #links % 4 ~= 0 then return 1 end
    if #links > 1000 then return 251 end
    for i = 1, #links, 4 do
      local fp, name, level, rest = links[i], links[i + 1], links[i + 2], links[i + 3]
      if type(fp) ~= 'string' or not find(fp, '^%-?%d+$') or #fp > 20 or not (good_names[name] or is_host_name(name))
        or not OFFERED_IN[level] or type(rest) ~= 'string' or sub(rest, -1) ~= ']'
        or not (sub(rest, 1, 9) == '"page","/' or OFFERED[match(rest, '^"(%l+)","/')]) then
        return (i + 3) / 4
      end
    end
    return 0
  end
end

-- Links that are not followed: reason, count, …. At most 16 reasons, each a short word: the totals must not grow by what
-- a worker makes up.
local function are_counts(left_out)
  if type(left_out) ~= 'table' or #left_out % 2 ~= 0 or #left_out > 32 then return false end
  for i = 1, #left_out, 2 do
    local reason, n = left_out[i], left_out[i + 1]
    if type(reason) ~= 'string' or not string.find(reason, '^%l[%l_]*$') or #reason > 32
      or type(n) ~= 'number' or n < 0 or n > 1e12 or n ~= math.floor(n) then return false end
  end
  return true
end

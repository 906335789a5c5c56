-- fragment _links.lua: are links well formed? Checked before the first write, because Lua does not roll back. Needs
-- _state and _hosts.
--
-- Returns 0, or which one is not; the 251st of a list is none either: it would take the server too long.
-- Not robots: the gate alone makes those.
local OFFERED = {page = true, sitemap = true}
local function bad_link(links)
  if type(links) ~= 'table' or #links % 4 ~= 0 then return 1 end
  if #links > 1000 then return 251 end
  for i = 1, #links, 4 do
    local fp, key, level, rest = links[i], links[i + 1], links[i + 2], links[i + 3]
    if type(key) == 'string' then key = named(key) end
    if type(fp) ~= 'string' or not string.find(fp, '^%-?%d+$') or #fp > 20 or type(key) ~= 'string'
      or not string.find(key, '^%l[%w+.-]*://[^/|]+$') or type(level) ~= 'string' or not string.find(level, '^[1-3]$')
      or type(rest) ~= 'string' or not string.find(rest, '^"%l+","/.*%]$')
      or not OFFERED[string.match(rest, '^"(%l+)"')] then
      return (i + 3) / 4
    end
  end
  return 0
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

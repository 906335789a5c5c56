-- fragment _links.lua: are links well formed? Checked before the first write, because Lua does not roll back.
--
-- Returns 0, or which one is not; the 251st of a list is none either: it would take the server too long.
-- Not robots: the gate alone makes those.
local OFFERED = {page = true, sitemap = true}
local function bad_link(links)
  if type(links) ~= 'table' or #links % 4 ~= 0 then return 1 end
  if #links > 1000 then return 251 end
  for i = 1, #links, 4 do
    local fp, key, level, rest = links[i], links[i + 1], links[i + 2], links[i + 3]
    if type(fp) ~= 'string' or not string.find(fp, '^%-?%d+$') or #fp > 20 or type(key) ~= 'string'
      or not string.find(key, '^%l[%w+.-]*://[^/|]+$') or type(level) ~= 'string' or not string.find(level, '^[1-3]$')
      or type(rest) ~= 'string' or not string.find(rest, '^"%l+","/.*%]$')
      or not OFFERED[string.match(rest, '^"(%l+)"')] then
      return (i + 3) / 4
    end
  end
  return 0
end

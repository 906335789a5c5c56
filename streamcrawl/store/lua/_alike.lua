-- fragment _alike.lua: does a host yield nothing but near-identical pages? Then it is demoted. Needs _state and _hosts.
--
-- Workers send a sketch of one page in 32 (rules/alike.py): 9 characters, the first a digit, how many of the others may
-- differ in a page that is nearly the same. Of a host is kept, each not at all while it is 0 or '':
--   said     its last 7 different sketches, the newest first. 63 characters: with one value of more than 64 Redis would
--            keep the hash of the host as a table of several times the size
--   alike    the share of pages near one of these, in thousandths; a tenth of the way at each, so that nine in ten takes
--            23 in a row
--   demoted  times its delay that it is left alone while other hosts wait (`demotion_of` in _hosts.lua): from
--            nine in ten on doubled by each page that is near another, up to the crawl's bound, and halved by each one
--            that is not
local SKETCH, SAID_MOST, ALIKE_MANY = 9, 7, 900

local function is_sketch(text)
  return type(text) == 'string' and #text == SKETCH and string.find(text, '^%d[%w+/]+$') ~= nil
end

local function is_near(one, other, most)
  for i = 2, SKETCH do
    if string.byte(one, i) ~= string.byte(other, i) then
      most = most - 1
      if most < 0 then return false end
    end
  end
  return true
end

-- A page of the host was had. Visited again it says the same as before, of course; but one that is unlike the last seven
-- speaks for its host, which may have no new pages any more.
local function said(h, sketch, is_again)
  if DEMOTION_MAX < 2 then return end
  local kept, most, is_one_of_them = {sketch}, tonumber(string.sub(sketch, 1, 1)), false
  for at = 1, #h.said, SKETCH do
    local one = string.sub(h.said, at, at + SKETCH - 1)
    if is_near(one, sketch, most) then is_one_of_them = true
    elseif #kept < SAID_MOST then kept[#kept + 1] = one end
  end
  if is_again and is_one_of_them then return end
  h.said = table.concat(kept)
  if is_one_of_them then
    h.alike = h.alike + math.floor((1000 - h.alike) / 10)
    if h.alike >= ALIKE_MANY then h.demoted = math.min(math.max(2 * h.demoted, 2), DEMOTION_MAX) end
  else
    h.alike = math.floor(h.alike * 9 / 10)
    h.demoted = h.demoted > 3 and math.floor(h.demoted / 2) or 0
  end
end

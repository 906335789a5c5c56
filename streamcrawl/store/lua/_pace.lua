-- fragment _pace.lua: what delay a host bears, learnt from its answers. Needs _state and _hosts.
--
-- Two numbers of a host, each 0 (not stored) while it is no more than the host's floor, the longer of the crawl's delay
-- and its Crawl-delay; delay_of takes the larger one:
--   paced      `delay_factor` times what its answers take, smoothed: the host is busy with us one part of that and left
--              alone so many. An eighth of the way to each new value (as TCP smooths round trips, RFC 6298): what a
--              single slow page adds is, over the fetches that follow, once its own share.
--   throttled  doubled when the host says or shows that it is too much (429, 503, a timeout), and less after each
--              answer: by a sixteenth where it was 429, so that a host which bears one fetch in 2 s refuses one of a dozen
--              and not every other; by an eighth else, for 503 and timeouts may be of single pages, and a host with one
--              such page in ten must go on.
--
-- Whoever sets a delay of 0 says that the host bears all they ask: how long its answers take is no reason to wait then,
-- a refusal still is.
local REFUSALS = {http_429 = true, http_503 = true, timeout = true}

local function answered_in(h, took)   -- of a host or of a domain, as `refused`
  local floor, paced = floor_of(h), 0
  if floor > 0 and DELAY_FACTOR > 0 and (took * DELAY_FACTOR > floor or h.paced > floor) then
    local aim = math.max(floor, math.min(took * DELAY_FACTOR, DELAY_MAX))
    paced = math.max(h.paced, floor)
    paced = paced + math.floor((aim - paced) / 8)
  end
  h.paced = paced > floor and paced or 0
  if h.throttled > 0 then
    local throttled = math.floor(h.throttled * (h.throttled_by == 'http_429' and 15 / 16 or 7 / 8))
    if throttled > floor then h.throttled = throttled else h.throttled, h.throttled_at, h.throttled_by = 0, 0, '' end
  end
end

-- The host refused a request that began at `began`. Not doubled by what was under way when it was doubled last: that
-- was sent at the old pace. Nor beyond the second refusal in a row: then the host is not too busy but down, and the
-- back-off of its circuit doubles instead, or its delay would still be the longest long after an outage of a minute.
local function refused(h, reason, began)
  count('throttled.' .. reason, 1)
  if h.failures >= 2 or began < h.throttled_at or DELAY_MAX <= floor_of(h) then return end
  h.throttled = math.min(DELAY_MAX, math.max(2 * borne_of(h), FIRST_STEP_MS))
  h.throttled_at, h.throttled_by = now, reason
end

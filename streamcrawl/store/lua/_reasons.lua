-- fragment _reasons.lua: counters of what is dropped, by reason. Needs _state.
--
-- A program's handler may name any reason (`Drop("sold out")`), and one that names a new one for each page would fill the
-- totals, which whoever looks reads whole. So of names that are not ours a line has 50 counters; all others count as
-- `other`. How many it has: the state's `reasons:<line>`.
local count_dropped
do
  local REASONS_MOST = 50
  local OURS = {robots = true, redirected = true, out_of_scope = true, host_budget = true, blocked_address = true,
    no_sitemap = true, handler = true, unavailable = true, purged = true, removed = true, replayed = true, old_copy = true,
    depth = true, url_length = true, trap_path_depth = true, trap_repetition = true, trap_query = true, trap_calendar = true,
    refresh_loop = true}

  function count_dropped(line, reason)
    local start = line .. '.dropped'
    local field = start .. '.' .. reason
    if not OURS[reason] and not counts[field] and call('HEXISTS', P .. 'totals', field) == 0 then
      if (tonumber(call('HGET', KEYS[1], 'reasons:' .. line)) or 0) >= REASONS_MOST then
        field = start .. '.other'
      else
        call('HINCRBY', KEYS[1], 'reasons:' .. line, 1)
      end
    end
    count(start, 1)
    count(field, 1)
  end
end

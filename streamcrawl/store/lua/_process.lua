-- fragment _process.lua: is this another process of the server than the caller thinks? Needs _state.
--
-- A script is all or nothing, but a caller may build on several: links offered in other shards before their page's commit,
-- offsets of a sink in several shards. A server that comes back without its last moment has forgotten the earlier one, and
-- would take the later. Its data cannot tell; its run_id can. '' is a caller who builds on nothing. By pcall: where INFO is
-- not permitted, nobody can tell.
local run_id
local function is_other_process(theirs)
  if theirs == '' then return false end
  if not run_id then
    local info = redis.pcall('INFO', 'server')
    run_id = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or theirs
  end
  return run_id ~= theirs
end

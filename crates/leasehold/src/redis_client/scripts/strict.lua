-- Strict mode. The last key stores an `epoch`: the server's run, and since when it runs. The last
-- two arguments are this server's run and the caller's longest lease (µs). A run that is not stored
-- begins now. The server may have lost leases of an earlier run, so it makes no new grants until the
-- longest of them has ended.
--
-- The other parts of the script read: `run` and `run_start`; `cool_down_until`, zero if there is no
-- cool-down; `min_token`: no lost token is above it; `run_arguments`: how many arguments are added
-- here.
local run_arguments, cool_down_until = 2, 0
local run, run_start, min_token
do
  local key, longest, refreshed = KEYS[#KEYS], tonumber(ARGV[#ARGV]), 0
  run, run_start = ARGV[#ARGV - 1], now
  local text = call('GET', key)
  local stored = text and (read_epoch(text) or refuse(text))
  -- A run is a server's run_id. With Sentinels, a colon and the number of the election that made
  -- the server the master follow. A client that knows of an older election, or of none, does not
  -- overwrite a newer one.
  local id, election = string.match(run, '^([^:]*):?(%d*)$')
  local old_id, old_election = string.match(stored and stored.run or '', '^([^:]*):?(%d*)$')
  if stored and id == old_id and (tonumber(old_election) or 0) >= (tonumber(election) or 0) then
    run = stored.run
    -- A start in the future: the clock was set back. It counts as now.
    if stored.start <= now then
      run_start, refreshed = stored.start, stored.refreshed
    end
  end
  if stored and stored.longest > longest then
    longest = stored.longest
  elseif stored and stored.longest < longest then
    refreshed = 0
  end
  -- No lost token was above this, if the clock was right then.
  min_token = math.max(run_start + longest, stored and stored.min_token or 0)
  if now - refreshed > 12 * 3600 * 1000000 then
    local epoch = { start = run_start, longest = longest, refreshed = now, min_token = min_token, run = run }
    call('SET', key, write_epoch(epoch), 'PX', 24 * 3600 * 1000 + math.ceil(longest / 1000))
  end
  if run_start + longest > now then cool_down_until = run_start + longest end
end

-- Strict mode. The last key stores, after the format number, the run of the server: its start, the
-- longest lease, when it was last refreshed, the floor of tokens (16 digits each), and its run_id.
-- The last two arguments are this server's run and the caller's longest lease. A run that is not
-- stored counts from now on. The server may have lost leases before it, so it makes no new grants
-- until the longest of them has ended.
--
-- The other parts of the script read: `frozen`: the end of this cool-down, or zero; `extra`:
-- how many arguments are added here; `floor`: no lost token is above it; `born`: the start of the
-- run, during a cool-down.
local frozen, extra, floor, born = 0, 2, ZERO, 0
-- The run and its start, for records.
local course, began
do
  local key, run, most = KEYS[#KEYS], ARGV[#ARGV - 1], num(ARGV[#ARGV])
  local stored = check(call('GET', key))
  local start, refreshed = now, 0
  -- A run is a server's run_id. With Sentinels, a colon and the number of the election that made
  -- the server the master follow. A client that knows of an older election, or of none, does not
  -- overwrite a newer one.
  local id, election = string.match(run, '^([^:]*):?(%d*)$')
  local old_id, old_election = string.match(stored and sub(stored, 66) or '', '^([^:]*):?(%d*)$')
  if stored and id == old_id and (num(old_election) or 0) >= (num(election) or 0) then
    run = sub(stored, 66)
    start, refreshed = num(sub(stored, 2, 17)), num(sub(stored, 34, 49))
    -- The clock was set back: a time in the future counts as now.
    if start > now then
      start, refreshed = now, 0
    end
  end
  if stored then
    local known = num(sub(stored, 18, 33))
    if known > most then most = known elseif known < most then refreshed = 0 end
  end
  -- No lost token was above this, if the clock was right then.
  floor = fmt('%016.0f', start + most)
  if stored and sub(stored, 50, 65) > floor then floor = sub(stored, 50, 65) end
  if now - refreshed > 43200000000 then
    call('SET', key, fmt(FORMAT .. '%016.0f%016.0f%016.0f', start, most, now) .. floor .. run, 'PX', 86400000 + math.ceil(most / 1000))
  end
  course, began = run, start
  if start + most > now then frozen, born = start + most, start end
end

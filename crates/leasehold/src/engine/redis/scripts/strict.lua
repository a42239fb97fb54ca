-- Strict mode. The last key holds which run of which server we are in, and since when: start, longest lease, last touched, the floor of
-- tokens (16 digits each), run. The last two arguments are this server's run and our longest lease. In a run that we have not seen from
-- its start, leases may have been forgotten: nobody new is let in before the longest of them is over.
local frozen, extra, floor, born = 0, 2, ZERO, 0
-- The run and its start, for records.
local course, began
do
  local key, run, most = KEYS[#KEYS], ARGV[#ARGV - 1], num(ARGV[#ARGV])
  local seen = call('GET', key)
  local start, touched = now, 0
  -- A run is a server's, and behind a colon the election that made it the master, where Sentinels told us. Whoever knows of an
  -- older election, or of none, does not know better.
  local id, election = string.match(run, '^([^:]*):?(%d*)$')
  local old_id, old_election = string.match(seen and sub(seen, 65) or '', '^([^:]*):?(%d*)$')
  if seen and id == old_id and (num(old_election) or 0) >= (num(election) or 0) then
    run = sub(seen, 65)
    start, touched = num(sub(seen, 1, 16)), num(sub(seen, 33, 48))
    -- The clock was set back: a time to come counts as now.
    if start > now then
      start, touched = now, 0
    end
  end
  if seen then
    local known = num(sub(seen, 17, 32))
    if known > most then most = known elseif known < most then touched = 0 end
  end
  -- Whatever was forgotten, no token of it was higher, if this clock was right then.
  floor = fmt('%016.0f', start + most)
  if seen and sub(seen, 49, 64) > floor then floor = sub(seen, 49, 64) end
  if now - touched > 43200000000 then
    call('SET', key, fmt('%016.0f%016.0f%016.0f', start, most, now) .. floor .. run, 'PX', 86400000 + math.ceil(most / 1000))
  end
  course, began = run, start
  if start + most > now then frozen, born = start + most, start end
end

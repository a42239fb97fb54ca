-- Most reads end here: there is a fresh value, no client writes, it is too early to reload it, and
-- the clock was not set back.
do
  local stored = call('HMGET', KEYS[1], 'm', 'v')
  local main, value = stored[1], stored[2]
  if main and IS(entry, main) then
    READ(entry, entry, main)
    if entry_kind ~= '-' and entry_generation == entry_of and entry_mark == NONE and entry_mark_until == 0
      and entry_written <= now then
      local left = entry_fresh - now
      if left > 0 and entry_cost * ARGV[7] < left * 1000 then return { 1, entry_kind, value or '' } end
    end
  end
end

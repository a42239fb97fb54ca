-- Most reads end here: there is a fresh value, no client writes, it is too early to reload it, and
-- the clock was not set back.
do
  local main, value = unpack(call('HMGET', KEYS[1], 'm', 'v'))
  local entry = main and read_entry(main)
  if entry and entry.kind ~= '-' and entry.generation == entry.of and entry.mark == NONE and entry.mark_until == 0
    and entry.written <= now then
    local left = entry.fresh - now
    if left > 0 and entry.cost * ARGV[7] < left * 1000 then return { 1, entry.kind, value or '' } end
  end
end

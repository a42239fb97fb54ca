for _, i in ipairs(in_tables) do
  local id = ARGV[i + 3]
  -- Reads again: two claims may be on one lock, and the first has changed it.
  open(KEYS[i], call('HGET', KEYS[i], 'm'))
  settle(id)
  local claim = get(id)
  -- A claim that only waits (a late request added it) does not hold.
  if claim and claim.token > 0 and known(id) then replies[i] = '1' end
  close()
end
return table.concat(replies)

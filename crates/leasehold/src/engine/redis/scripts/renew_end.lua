local function renew_in_queue(i)
  local id = ARGV[i + 3]
  -- Reads again: two claims may be on one lock, and the first has changed it.
  open(KEYS[i], call('HGET', KEYS[i], 'm'))
  settle(id)
  local claim = get(id)
  -- A claim that only waits (a late request added it) does not hold.
  local reply = claim and claim.token > 0 and known(id) and '1' or '0'
  close()
  return reply
end
for _, i in ipairs(in_tables) do replies[i] = isolate(renew_in_queue, i) end
return table.concat(replies)

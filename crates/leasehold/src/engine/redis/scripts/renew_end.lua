for _, i in ipairs(rich) do
  -- Reads again: two claims may be on one lock, and the first has changed it.
  open(KEYS[i], call('HGET', KEYS[i], 'm'))
  settle(ARGV[i + 4])
  local rec = get(ARGV[i + 4])
  -- A claim that only waits (a late request added it) does not hold.
  if rec and token_of(rec) > 0 and known(ARGV[i + 4]) then answers[i] = '1' end
  close()
end
return table.concat(answers)

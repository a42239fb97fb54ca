for _, i in ipairs(rich) do
  -- Read again: two claims may be on one lock, and the first has changed it.
  open(KEYS[i], call('HGET', KEYS[i], 'm'))
  settle(ARGV[i + 4])
  if known(ARGV[i + 4]) then answers[i] = '1' end
  close()
end
return table.concat(answers)

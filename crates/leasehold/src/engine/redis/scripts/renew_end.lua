for _, found in ipairs(rich) do
  local i = found[1]
  open(KEYS[i], found[2])
  settle(ARGV[i + 4])
  if known(ARGV[i + 4]) then answers[i] = '1' end
  close()
end
return table.concat(answers)

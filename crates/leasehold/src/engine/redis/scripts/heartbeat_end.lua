open(KEYS[1], main)
settle(ARGV[1])
local answer = known(ARGV[1])
if not answer then
  answer = { 0, recheck() }
  -- The claim may have been force released while no message reached its client.
  local evictions = call('HGET', KEYS[1], 'x') or ''
  for at = 1, #evictions, 32 do
    if sub(evictions, at, at + 15) == ARGV[1] and sub(evictions, at + 16, at + 31) > clock then answer = { 4 } end
  end
end
close()
return answer

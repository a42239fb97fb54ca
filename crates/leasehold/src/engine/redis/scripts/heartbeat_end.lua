open(KEYS[1], main)
settle(ARGV[1])
local answer = known(ARGV[1])
if not answer then
  answer = { 0, recheck() }
  -- The claim may have been force released while no message reached its client.
  local listed = call('HGET', KEYS[1], 'x') or ''
  for at = 1, #listed, 32 do
    if sub(listed, at, at + 15) == ARGV[1] and sub(listed, at + 16, at + 31) > clock then answer = { 4 } end
  end
end
close()
return answer

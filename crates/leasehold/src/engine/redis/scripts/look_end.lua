open(KEYS[1], main)
settle(ARGV[1])
local answer = known(ARGV[1]) or { 0, recheck() }
close()
return answer

open(KEYS[1], main)
settle(ARGV[1])
local rec, answer = get(ARGV[1]), 0
if rec then
  answer = token_of(rec) > 0 and 1 or 2
  remove(ARGV[1], rec)
  settle()
end
close()
return answer

open(key, main)
settle(claim)
local rec, answer = get(claim), 0
if rec then
  answer = token_of(rec) > 0 and 1 or 2
  remove(claim, rec)
  settle()
end
close()
return answer

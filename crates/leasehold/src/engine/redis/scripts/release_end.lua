open(key, main)
if silent then
  -- It was let in, and nobody hears it: the next, please.
  remove(silent, get(silent))
  settle()
  close()
  return 1
end
settle(claim)
local rec, answer = get(claim), 0
if rec then
  answer = token_of(rec) > 0 and 1 or 2
  remove(claim, rec)
  settle()
end
close()
return answer

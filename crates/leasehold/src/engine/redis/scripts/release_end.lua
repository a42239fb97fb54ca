open(key, main)
settle(id)
local claim, reply = get(id), 0
if claim then
  reply = claim.token > 0 and 1 or 2
  remove(id, claim)
  settle()
end
close()
return reply

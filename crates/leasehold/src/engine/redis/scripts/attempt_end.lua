open(key, main)
settle(id)
local reply = known(id)
if not reply then
  local claim = new_claim(ARGV[4])
  local wants = claim.wants
  local token, other = owned(wants)
  if wants.mode == 'P' and lock.semaphore_claims > 0 and lock.limit ~= wants.limit then
    reply = { 'limit', lock.limit }
  elseif other and not token then
    reply = { 'held', other.mode, other.permits, other.limit }
  else
    if not token and lock.waiters == 0 then token = admit(wants) end
    if token then
      count_claim(wants, 1)
      grant(id, claim, token)
      reply = token
    elseif ARGV[3] == 'try' then
      reply = { 'busy', recheck(), cool_down_left() }
    else
      count_claim(wants, 1)
      claim.place = next_place()
      restart(claim)
      append(waiting, id, claim)
      reply = queued(lock.waiters, claim.place)
      lock.waiters = lock.waiters + 1
    end
  end
end
close()
return reply

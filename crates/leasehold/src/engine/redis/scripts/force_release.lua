-- Force releases a claim.
--
-- KEYS: the lock. ARGV: retention (s), claim, reason. Reply: the raised token, if the claim was the
-- only holder; the lowest token of the holders that stay (while strict mode cools down, of those
-- that may stay); the claim; the time (µs). What does not exist is 0.
local id = ARGV[2]
open(KEYS[1], call('HGET', KEYS[1], 'm'))
settle()
local claim, raised, lowest = get(id), 0, 0
local stored = claim and write_claim(claim) or 0
if claim then
  if claim.token > 0 then
    each_holder(function(other, holder)
      if other ~= id and (lowest == 0 or holder.token < lowest) then lowest = holder.token end
    end)
    if lowest == 0 then
      lock.token = math.max(lock.token + 1, now)
      raised = lock.token
    end
    -- While strict mode cools down, a holder may be missing here: a token above the force-released
    -- one could refuse it. So none is advised.
    if cool_down_until > 0 then lowest = claim.token end
  end
  notify(claim, write_force_released({ claim = id, place = claim.place, reason = ARGV[3] }))
  remove(id, claim)
  settle()
end
close()
-- The client may miss the message: its next heartbeat reports the force release again. Only the
-- last hundred are kept, each for the claim's TTL.
if claim then
  local list, at, recent = call('HGET', KEYS[1], 'x') or '', 1, {}
  while at <= #list do
    local released
    released, at = read_released(list, at)
    if released.report_until > now then recent[#recent + 1] = write_released(released) end
  end
  recent[#recent + 1] = write_released({ claim = id, report_until = now + claim.wants.ttl })
  call('HSET', KEYS[1], 'x', table.concat(recent, '', math.max(#recent - 99, 1)))
end
return { raised, lowest, stored, now }

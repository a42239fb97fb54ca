-- Force releases a claim. KEYS: the lock. ARGV: claim, -, retention, -, reason. Returns the raised
-- token, if the claim was the only holder; the lowest token of the holders that stay (while strict
-- mode cools down, of those that may stay); the claim's record; the time. What does not exist is
-- zero.
open(KEYS[1], call('HGET', KEYS[1], 'm'))
settle()
local rec, fence, lowest = get(ARGV[1]), 0, 0
if rec then
  if token_of(rec) > 0 then
    each_held(function(claim, other)
      local token = token_of(other)
      if claim ~= ARGV[1] and (lowest == 0 or token < lowest) then lowest = token end
    end)
    if lowest == 0 then
      last = last >= now and last + 1 or now
      fence = last
    end
    -- While strict mode cools down, a holder may be missing here: a token above the force-released
    -- one could refuse it. So none is advised.
    if frozen > 0 then lowest = token_of(rec) end
  end
  notify(rec, FORMAT .. 'X' .. ARGV[1] .. sub(rec, 33, 48) .. ARGV[5])
  remove(ARGV[1], rec)
  settle()
end
close()
-- The client may miss the message: its next heartbeat reports the force release again. Only the
-- last hundred are kept, each for the claim's TTL.
if rec then
  local listed, recent = call('HGET', name, 'x') or '', {}
  for at = math.max(#listed - 99 * 32, 0) + 1, #listed, 32 do
    if sub(listed, at + 16, at + 31) > clock then recent[#recent + 1] = sub(listed, at, at + 31) end
  end
  recent[#recent + 1] = ARGV[1] .. n16(now + ttl_of(rec))
  call('HSET', name, 'x', table.concat(recent))
end
return { fence, lowest, rec, now }

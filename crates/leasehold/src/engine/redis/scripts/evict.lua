-- Evicts a claim. KEYS: the lock. ARGV: claim, -, retention, -, reason. Answers: the token that was raised, if it held alone; the lowest token of
-- the holders that stay; its record; the time. What is not there is zero.
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
  end
  tell(rec, 'X' .. ARGV[1] .. sub(rec, 33, 48) .. ARGV[5])
  remove(ARGV[1], rec)
  settle()
end
close()
return { fence, lowest, rec, now }

-- KEYS: the lock. ARGV: claim, attempt, retention, guess, party. Answers 1: stored with the guess, or a text: how it stands.
local key, claim, attempt, guess, party = KEYS[1], ARGV[1], ARGV[2], ARGV[4], ARGV[5]
local last, mine, same, till, back, gone = see(key, claim, sub(party, 14, 29), all)
last = later(last, floor)
if till or guess > ZERO and guess == back and claim == gone then return 'N' .. last .. clock end
if frozen > now then return 'A' .. last .. clock .. fmt('%016.0f', frozen - now) end
local own = ZERO
if mine then
  own, attempt = sub(mine, 17, 32), later(sub(mine, 1, 16), attempt)
end
if own == ZERO then
  if same > ZERO then
    own = same
  elseif guess > last then
    own = guess
  end
end
store(key, claim, last, attempt, own, party, ARGV[3])
if own == guess and guess > last then return 1 end
return 'Y' .. later(last, own) .. clock .. own .. same

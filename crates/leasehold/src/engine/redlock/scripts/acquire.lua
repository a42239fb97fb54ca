-- Returns 1: stored with the guess, or a text with the state of the lock.
local key, claim, attempt, guess, contender = KEYS[1], ARGV[1], ARGV[2], ARGV[4], ARGV[5]
local stored, mine, same, till, rest = see(key, text, claim, sub(contender, 14, 29))
local last = later(stored, floor)
if till or guess > ZERO and guess == rest.back and claim == rest.by then return 'N' .. last .. clock end
if frozen > now then return 'A' .. last .. clock .. fmt('%016.0f', frozen - now) end
local own = ZERO
if mine then
  own, attempt = sub(mine, 33, 48), later(sub(mine, 17, 32), attempt)
end
if own == ZERO then
  if same > ZERO then
    own = same
  elseif guess > last then
    own = guess
  end
end
store(key, rest, stored, claim, attempt, own, contender, ARGV[3])
if own == guess and guess > last then return 1 end
return 'Y' .. later(last, own) .. clock .. own .. same

-- Extends leases. KEYS: the locks. ARGV: attempt, retention; for each lock: claim, token, party. Answers a letter for each:
-- 1: extended; 0: somebody else was here; A: not to be told.
local answers = {}
for i = 1, #KEYS - extra / 2 do
  local key, claim, token, party = KEYS[i], ARGV[3 * i], ARGV[3 * i + 1], ARGV[3 * i + 2]
  local last, mine, same, till, back, gone = see(key, claim, sub(party, 14, 29))
  local stored, attempt = token, ARGV[1]
  if mine then
    local had = sub(mine, 17, 32)
    if not (token > had and (token > last or token == same)) then stored = had end
    attempt = later(sub(mine, 1, 16), attempt)
  end
  if frozen > now then
    answers[i] = 'A'
  elseif not mine and (till or token < back or token == back and claim == gone or token < last and token ~= same) then
    answers[i] = '0'
  else
    store(key, claim, last, attempt, stored, party, ARGV[2])
    answers[i] = '1'
  end
end
return table.concat(answers)

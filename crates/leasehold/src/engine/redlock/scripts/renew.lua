-- Renews leases. KEYS: the locks. ARGV: attempt, retention; for each lock: claim, token, contender.
-- Returns a letter for each. 1: renewed; 0: refused, another claim was here; A: unknown, this node
-- is in its cool-down.
local answers = {}
for i = 1, #KEYS - extra / 2 do
  local key, claim, token, contender = KEYS[i], ARGV[3 * i], ARGV[3 * i + 1], ARGV[3 * i + 2]
  local text = call('GET', key)
  if text and sub(text, 1, 1) ~= FORMAT then
    -- The other leases are renewed all the same.
    answers[i] = '0'
  else
    local last, mine, same, till, rest = see(key, text, claim, sub(contender, 14, 29))
    local here = mine and sub(mine, 33, 48) == token
    local fits = same == token or same == ZERO and token >= last
    local given_back = token < rest.back or token == rest.back and claim == rest.by
    if frozen > now then
      answers[i] = 'A'
    elseif not here and (till or not fits or not mine and given_back) then
      answers[i] = '0'
    else
      local attempt = mine and later(sub(mine, 17, 32), ARGV[1]) or ARGV[1]
      store(key, rest, last, claim, attempt, token, contender, ARGV[2])
      answers[i] = '1'
    end
  end
end
return table.concat(answers)

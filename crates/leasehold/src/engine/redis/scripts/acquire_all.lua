-- Acquires several locks, all or none.
--
-- KEYS: the locks. ARGV: retention (s), then for each lock claim and contender. Reply: the tokens;
-- nil if a lock is not free.
local function each_lock(act)
  for i = 1, (#ARGV - 1 - run_arguments) / 2 do
    open(KEYS[i], call('HGET', KEYS[i], 'm'))
    local continue = act(i, ARGV[i * 2], ARGV[i * 2 + 1])
    close()
    if not continue then return false end
  end
  return true
end
local are_free = each_lock(function(_, id, contender)
  settle(id)
  local claim = get(id)
  if claim then return claim.token > 0 end
  local wants = read_contender(contender)
  if wants.mode == 'P' and lock.semaphore_claims > 0 and lock.limit ~= wants.limit then return false end
  return owned(wants) or lock.waiters == 0 and admit(wants)
end)
if not are_free then return false end
local tokens = {}
each_lock(function(i, id, contender)
  tokens[i] = known(id)
  if not tokens[i] then
    local claim = new_claim(contender)
    tokens[i] = admit(claim.wants)
    count_claim(claim.wants, 1)
    grant(id, claim, tokens[i])
  end
  return true
end)
return tokens

-- Acquires several locks, all or none. KEYS: the locks. ARGV: -, -, retention, longest TTL (s),
-- then for each lock claim and contender. Returns the tokens; false if a lock is not free.
local tokens, count = {}, (#ARGV - 4 - extra) / 2
local function each(act)
  for i = 1, count do
    open(KEYS[i], call('HGET', KEYS[i], 'm'))
    local going = act(i, ARGV[i * 2 + 3], string.rep('0', 80) .. ARGV[i * 2 + 4])
    close()
    if not going then return false end
  end
  return true
end
local free = each(function(_, claim, rec)
  settle(claim)
  local there = get(claim)
  if there then return token_of(there) > 0 end
  if is_full() then return false end
  if mode_of(rec) == 'P' and permits > 0 and limit ~= limit_of(rec) then return false end
  return owned(owner_of(rec), mode_of(rec), n_of(rec), limit_of(rec)) or waiters == 0 and entry(rec)
end)
if not free then return false end
each(function(i, claim, rec)
  local token = known(claim)
  if not token then
    token = entry(rec)
    present(rec, 1)
    grant(claim, rec, token)
  end
  tokens[i] = token
  return true
end)
return tokens

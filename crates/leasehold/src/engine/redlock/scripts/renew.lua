-- Renews leases.
--
-- KEYS: the locks. ARGV: retention (s), attempt; for each lock: claim, token, contender. Reply: one
-- digit for each: 1: renewed; 0: refused, another claim was here; 2: unknown, this node is in its
-- cool-down.
local attempt, replies = tonumber(ARGV[2]), {}
local function renew_lease(i)
  local key, id, token, contender = KEYS[i], ARGV[3 * i], tonumber(ARGV[3 * i + 1]), ARGV[3 * i + 2]
  local view = view_for(key, call('GET', key), id, read_contender(contender).owner)
  local mine, owner_token, lock = view.mine, view.owner_token, view.lock
  local is_here = mine and mine.token == token
  local fits = owner_token == token or owner_token == 0 and token >= view.highest
  local was_released = token < lock.released_token or token == lock.released_token and id == lock.released_by
  if cool_down_until > now then return '2' end
  if not is_here and (view.busy_until or not fits or not mine and was_released) then return '0' end
  local latest = math.max(attempt, mine and mine.attempt or 0)
  store(key, view, { claim = id, attempt = latest, token = token, contender = contender })
  return '1'
end
for i = 1, (#ARGV - 2 - run_arguments) / 3 do replies[i] = isolate(renew_lease, i) end
return table.concat(replies)

local view = view_for(key, text, id, read_contender(contender).owner)
local lock, mine = view.lock, view.mine
local highest = math.max(view.highest, min_token)
if view.busy_until or guess > 0 and guess == lock.released_token and id == lock.released_by then
  return { 'no', highest, now }
end
if cool_down_until > now then return { 'cooling-down', highest, now, cool_down_until - now } end
local token = mine and mine.token or 0
if token == 0 then
  if view.owner_token > 0 then
    token = view.owner_token
  elseif guess > highest then
    token = guess
  end
end
attempt = math.max(attempt, mine and mine.attempt or 0)
store(key, view, { claim = id, attempt = attempt, token = token, contender = contender })
if token == guess and guess > highest then return 1 end
return { 'yes', math.max(highest, token), now, token, view.owner_token }

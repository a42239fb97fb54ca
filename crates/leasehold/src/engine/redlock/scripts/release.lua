-- Removes the vote for this attempt of a claim, or for an earlier one.
--
-- KEYS: the lock. ARGV: retention (s), claim, attempt, `granted` if the claim had got its token.
-- Reply: 1: there was a vote; 0: there was none.
local key, id, attempt = KEYS[1], ARGV[2], tonumber(ARGV[3])
local text = call('GET', key)
local lock = text and (read_node_lock(text) or refuse(text))
if not lock then return 0 end
local votes, at, vote, next = lock.votes, 1, nil, nil
while at <= #votes do
  vote, next = read_vote(votes, at)
  if vote.claim == id then break end
  at = next
end
if at > #votes or vote.attempt > attempt then return 0 end
lock.votes = sub(votes, 1, at - 1) .. sub(votes, next)
if ARGV[4] == 'granted' then
  lock.ended_token = math.max(lock.ended_token, vote.token)
  if vote.token >= lock.released_token then lock.released_token, lock.released_by = vote.token, id end
end
local done = redis.pcall('SET', key, write_node_lock(lock), 'KEEPTTL')
if done.err and string.find(done.err, 'OOM') then
  -- A server that is out of memory lets a script continue once it has written. DEL needs no memory.
  -- The other votes last as long as before: until the last claim's end, and until the clock has
  -- passed the tokens.
  local time = call('TIME')
  local now = time[1] * 1000000 + time[2]
  local ends = math.max(now, lock.ended_token)
  at = 1
  while at <= #lock.votes do
    vote, at = read_vote(lock.votes, at)
    ends = math.max(ends, vote.token, vote.since + read_contender(vote.contender).ttl)
  end
  call('DEL', key)
  call('SET', key, write_node_lock(lock), 'EX', math.ceil((ends - now) / 1000000) + ARGV[1])
elseif done.err then
  return done
end
return 1

-- Votes for a claim.
--
-- KEYS: the lock. ARGV: retention (s), claim, attempt, guess of the token (0: none), contender.
-- Reply: 1: the vote is stored with the guess, or one of
--   { 'yes', highest token, time (µs), the claim's token, its owner's token }; 0: none
--   { 'no', highest token, time }
--   { 'cooling-down', highest token, time, how long that lasts (µs) }
local key, id, attempt, guess, contender = KEYS[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local text = call('GET', key)
-- The common case: no claim is here, and the guess, if there is one, is above all known tokens. The
-- functions below do the same. Creating them takes longer than all of this.
local lock = { ended_token = 0, released_token = 0, released_by = NONE, votes = '' }
if text then lock = read_node_lock(text) or refuse(text) end
if cool_down_until == 0 and lock.votes == '' then
  local highest = math.max(lock.ended_token, min_token)
  if guess > highest or guess == 0 then
    local ends = math.max(now, guess, lock.ended_token) + read_contender(contender).ttl
    local vote = { claim = id, attempt = attempt, token = guess, since = now, contender = contender }
    call('SET', key, write_node_lock(lock) .. write_vote(vote), 'EX', math.ceil((ends - now) / 1000000) + ARGV[1])
    if guess > highest then return 1 end
    return { 'yes', highest, now, 0, 0 }
  end
end

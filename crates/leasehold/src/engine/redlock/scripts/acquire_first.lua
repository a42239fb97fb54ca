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
-- functions below do the same. To create them takes longer than all of this.
if cool_down_until == 0 and (not text or IS(node_lock, text)) then
  READ(lock, node_lock, text or EMPTY(node_lock))
  local highest = math.max(lock_ended_token, min_token)
  if (not text or lock_next > #text) and (guess > highest or guess == 0) then
    READ(wants, contender.ttl, contender)
    local ends = math.max(now, guess, lock_ended_token) + wants_ttl
    local vote_claim, vote_attempt, vote_token, vote_since, vote_contender = id, attempt, guess, now, contender
    call('SET', key, WRITE(lock, node_lock) .. WRITE(vote, vote), 'EX', math.ceil((ends - now) / 1000000) + ARGV[1])
    if guess > highest then return 1 end
    return { 'yes', highest, now, 0, 0 }
  end
end

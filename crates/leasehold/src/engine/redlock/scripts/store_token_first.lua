-- Stores a token with the vote for a claim.
--
-- KEYS: the lock. ARGV: retention (s), claim, attempt, token, owner. Reply: one of
--   { 'stored' }
--   { 'missing' }: no vote of this attempt is here
--   { 'owner', token }: another claim of its owner has this token
--   { 'low', highest token }: the token is not above it
--   { 'cooling-down' }
local key, id, attempt, token = KEYS[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local text = call('GET', key)
-- The common case, as in acquire_first.lua: only the caller's claim is here, live and without a
-- token, and the token is above all known ones.
if cool_down_until == 0 and text and IS(node_lock, text) then
  READ(lock, node_lock, text)
  if lock_next <= #text and token > math.max(lock_ended_token, min_token) then
    READ(vote, vote, text, lock_next)
    READ(wants, contender.ttl, vote_contender)
    if vote_next > #text and vote_claim == id and vote_attempt == attempt and vote_token == 0
      and vote_since + wants_ttl > now and vote_since <= now then
      vote_token, vote_since = token, now
      local keep = math.ceil((math.max(now, token) - now + wants_ttl) / 1000000) + ARGV[1]
      call('SET', key, WRITE(lock, node_lock) .. WRITE(vote, vote), 'EX', keep)
      return { 'stored' }
    end
  end
end

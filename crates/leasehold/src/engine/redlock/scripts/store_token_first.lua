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
local lock = text and (read_node_lock(text) or refuse(text))
if cool_down_until == 0 and lock and lock.votes ~= '' and token > math.max(lock.ended_token, min_token) then
  local vote, next = read_vote(lock.votes)
  local ttl = read_contender(vote.contender).ttl
  if next > #lock.votes and vote.claim == id and vote.attempt == attempt and vote.token == 0
    and vote.since + ttl > now and vote.since <= now then
    vote.token, vote.since, lock.votes = token, now, ''
    local keep = math.ceil((math.max(now, token) - now + ttl) / 1000000) + ARGV[1]
    call('SET', key, write_node_lock(lock) .. write_vote(vote), 'EX', keep)
    return { 'stored' }
  end
end

-- Force releases a claim, and if it was there stores a token above all others.
--
-- KEYS: the lock. ARGV: retention (s), claim, token, `always` if the token is stored also where the
-- claim is not. Reply: 1 if the token was stored; the highest token; the time (µs); the claim's
-- vote (nil: there was none); 1 if other claims stay.
local key, id, token = KEYS[1], ARGV[2], tonumber(ARGV[3])
local view = view_for(key, call('GET', key), id, NONE)
local lock, vote = view.lock, view.mine
local known, has_others = math.max(view.highest, min_token), view.busy_until and 1 or 0
if not vote and ARGV[4] ~= 'always' then return { 0, known, now, false, has_others } end
lock.ended_token = math.max(view.highest, token)
-- The claim counts as released, so that a renewal does not restore it beside another claim of its
-- owner, which has the same token.
if vote and vote.token > 0 and vote.token >= lock.released_token then
  lock.released_token, lock.released_by = vote.token, id
end
local ends = math.max(now, lock.ended_token, view.others_end)
call('SET', key, write_node_lock(lock), 'EX', math.ceil((ends - now) / 1000000) + RETENTION)
-- Notifies the claim's client, if it subscribes. A caller that may not publish has force released
-- the claim all the same: then the client learns of it at its next renewal.
local inbox = vote and read_contender(vote.contender).inbox or ''
if inbox ~= '' then
  redis.pcall('PUBLISH', inbox, write_force_released({ claim = id, place = 0, reason = '' }))
end
return { token > known and 1 or 0, known, now, vote and write_vote(vote) or false, has_others }

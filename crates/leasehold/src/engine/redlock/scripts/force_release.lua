-- Force releases a claim, and if it was there stores a token above all others. KEYS: the lock.
-- ARGV: claim, -, retention, token, whether to store the token also where the claim is not. Returns
-- whether the token was stored, the highest token, the time, the claim's record, whether the claim
-- was there, and whether others stay.
local key, claim, token = KEYS[1], ARGV[1], ARGV[4]
local last, record, _, till, rest = see(key, call('GET', key), claim, NONE)
local known = later(last, floor)
if not record and ARGV[5] == '0' then return { 0, known, clock, '', 0, till and 1 or 0 } end
local highest = later(last, token)
local ends = math.max(now, num(highest), rest.ends)
-- The claim counts as released, so that a renewal does not restore it beside another claim of its
-- owner, which has the same token.
local back, by = rest.back, rest.by
if record and sub(record, 33, 48) ~= ZERO and sub(record, 33, 48) >= back then
  back, by = sub(record, 33, 48), claim
end
call('SET', key, FORMAT .. highest .. back .. by .. rest.records, 'EX', math.ceil((ends - now) / 1000000) + ARGV[3])
-- Notifies the claim's client, if it subscribes. A caller that may not publish has force released
-- the claim all the same: then the client learns of it at its next renewal.
if record and sub(record, 101, 116) ~= ZERO then
  redis.pcall('PUBLISH', sub(key, 1, num(sub(record, 98, 100))) .. 'i' .. sub(record, 101, 116), FORMAT .. 'X' .. claim .. ZERO)
end
return { token > known and 1 or 0, known, clock, record or '', record and 1 or 0, till and 1 or 0 }

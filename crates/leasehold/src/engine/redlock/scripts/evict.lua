-- Ends a claim, whoever's it is, and stores a token above all others, if it is. KEYS: the lock. ARGV: claim, -, retention, token.
-- Answers whether it was, the highest token, the time, and the claim's record.
local key, claim, token = KEYS[1], ARGV[1], ARGV[4]
local last, record = see(key, claim, NONE)
if record then call('HDEL', key, claim) end
local highest = later(last, token)
call('HSET', key, 't', highest)
call('EXPIREAT', key, fmt('%.0f', math.ceil(later(highest, clock) / 1000000) + ARGV[3]))
local known = later(last, floor)
return { token > known and 1 or 0, known, clock, record or '' }

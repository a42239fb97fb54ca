-- Ends a claim, whoever's it is, and stores a token above all others, if it is. KEYS: the lock. ARGV: claim, -, retention, token.
-- Answers whether it was, the highest token, the time, and the claim's record.
local key, claim, token = KEYS[1], ARGV[1], ARGV[4]
local last, record, _, _, rest = see(key, call('GET', key), claim, NONE)
local highest = later(last, token)
local ends = math.max(now, num(highest), rest.ends)
call('SET', key, highest .. rest.back .. rest.by .. rest.records, 'EX', math.ceil((ends - now) / 1000000) + ARGV[3])
local known = later(last, floor)
return { token > known and 1 or 0, known, clock, record or '' }

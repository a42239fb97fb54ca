-- Renews our own lock. ARGV: claim, TTL (ms).
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, 33) == ARGV[1] .. ':' then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0

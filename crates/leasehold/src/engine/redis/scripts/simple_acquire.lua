-- Acquires the textbook lock: SET key value NX PX. The value is the format number, the claim
-- and its token. ARGV: format number and claim, TTL (ms).
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, #ARGV[1]) == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return tonumber(string.sub(value, #ARGV[1] + 1))
end
if value then return { 0, redis.call('PTTL', KEYS[1]) } end
local time = redis.call('TIME')
local token = time[1] .. string.sub('00000' .. time[2], -6)
redis.call('SET', KEYS[1], ARGV[1] .. token, 'NX', 'PX', ARGV[2])
return tonumber(token)

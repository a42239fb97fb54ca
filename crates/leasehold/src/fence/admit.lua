-- Admits or refuses a write to one key. KEYS[1] is the fence's key; KEYS[2], which may be missing, is the key to write.
-- ARGV[1] is the token, ARGV[2] the value for KEYS[2]. Returns the highest token seen if ARGV[1] is lower, and nil otherwise.
-- Tokens stay decimal texts, because Lua's numbers are exact to 2^53 only: the longer text is higher, equal lengths compare as text.
local token, seen = ARGV[1], redis.call('GET', KEYS[1])
if seen and (#token < #seen or (#token == #seen and token < seen)) then
  return seen
end
redis.call('SET', KEYS[1], token)
if KEYS[2] then
  redis.call('SET', KEYS[2], ARGV[2])
end
return false

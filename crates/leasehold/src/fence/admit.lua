-- The fence of one key. KEYS: the fence, and with a value the key itself. ARGV: the token, the value.
-- Tokens are digits, not Lua's numbers: those are exact to 2^53 only. More digits are more; as many are compared as text.
local token, seen = ARGV[1], redis.call('GET', KEYS[1])
if seen and (#token < #seen or (#token == #seen and token < seen)) then
  return seen
end
redis.call('SET', KEYS[1], token)
if KEYS[2] then
  redis.call('SET', KEYS[2], ARGV[2])
end
return false

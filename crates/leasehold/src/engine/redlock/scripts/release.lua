-- Ends what this attempt of a claim, or an earlier one, has left. KEYS: the lock. ARGV: claim, attempt, retention, whether its
-- token was granted. Answers whether there was something.
local key, claim = KEYS[1], ARGV[1]
local found = call('HMGET', key, claim, 't', 'r')
local record = found[1]
if not record or sub(record, 1, 16) > ARGV[2] then return 0 end
if ARGV[4] == '1' then
  local token, last, back = sub(record, 17, 32), found[2] or ZERO, found[3] or ZERO
  if token > last then last = token end
  if token > back then back = token end
  -- A hash without fields is gone, and its expiry with it: so this comes first. A server without memory refuses it, but lets a
  -- script go on that has begun to write.
  if type(redis.pcall('HSET', key, 't', last, 'r', back)) == 'table' then
    call('HDEL', key, claim)
    call('HSET', key, 't', last, 'r', back)
    call('EXPIRE', key, ARGV[3])
    return 1
  end
end
call('HDEL', key, claim)
return 1

-- Ends what this attempt of a claim, or an earlier one, has left. KEYS: the lock. ARGV: claim, attempt, whether its token was
-- granted. Answers whether there was something.
local found = call('HMGET', KEYS[1], ARGV[1], 't', 'r')
local record = found[1]
if not record or sub(record, 1, 16) > ARGV[2] then return 0 end
-- First what takes no memory: a server that has none lets a script go on that has begun to write.
call('HDEL', KEYS[1], ARGV[1])
local token = sub(record, 17, 32)
if ARGV[3] == '1' then
  local last, back = found[2] or ZERO, found[3] or ZERO
  call('HSET', KEYS[1], 't', token > last and token or last, 'r', token >= sub(back, 1, 16) and token .. ARGV[1] or back)
end
return 1

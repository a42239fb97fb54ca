-- Removes the record of this attempt of a claim, or of an earlier one. KEYS: the lock. ARGV: claim,
-- attempt, retention, whether its token was granted. Returns whether there was something.
local key, claim = KEYS[1], ARGV[1]
local text = check(call('GET', key))
local at, size = 50, 0
while text and at < #text do
  size = 68 + math.abs(sub(text, at + 64, at + 67))
  if sub(text, at, at + 15) == claim then break end
  at = at + size
end
if not text or at >= #text or sub(text, at + 16, at + 31) > ARGV[2] then return 0 end
local gone, back, by = sub(text, 2, 17), sub(text, 18, 33), sub(text, 34, 49)
if ARGV[4] == '1' then
  local token = sub(text, at + 32, at + 47)
  if token > gone then gone = token end
  if token >= back then
    back, by = token, claim
  end
end
local rest = FORMAT .. gone .. back .. by .. sub(text, 50, at - 1) .. sub(text, at + size)
local done = redis.pcall('SET', key, rest, 'KEEPTTL')
if done.err and string.find(done.err, 'OOM') then
  -- A server that is out of memory lets a script continue once it has written. DEL needs no memory.
  -- The other records last as long as before: until the last claim's end, and until the clock has
  -- passed the tokens.
  local time = call('TIME')
  local now = time[1] * 1000000 + time[2]
  local ends = math.max(now, num(gone))
  at = 50
  while at < #rest do
    ends = math.max(ends, num(sub(rest, at + 32, at + 47)), sub(rest, at + 48, at + 63) + sub(rest, at + 69, at + 80))
    at = at + 68 + math.abs(sub(rest, at + 64, at + 67))
  end
  call('DEL', key)
  call('SET', key, rest, 'EX', math.ceil((ends - now) / 1000000) + ARGV[3])
elseif done.err then
  return done
end
return 1

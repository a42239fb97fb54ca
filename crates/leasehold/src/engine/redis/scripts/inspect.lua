-- Returns a lock as it is stored.
local time = redis.call('TIME')
local fields = redis.call('HGETALL', KEYS[1])
local main = redis.call('HGET', KEYS[1], 'm')
local group = false
if main and string.sub(main, 1, 2) == '1B' then
  group = redis.call('GET', string.sub(main, 61, 60 + tonumber(string.sub(main, 29, 44))))
end
return { time[1] * 1000000 + time[2], fields, group }

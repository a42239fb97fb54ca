-- Shows a lock as it is stored.
local time = redis.call('TIME')
return { time[1] * 1000000 + time[2], redis.call('HGETALL', KEYS[1]) }

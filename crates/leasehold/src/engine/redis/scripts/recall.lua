-- The server's time in us, and what is stored of a record.
local time = redis.call('TIME')
return { time[1] * 1000000 + time[2], redis.call('GET', KEYS[1]) }

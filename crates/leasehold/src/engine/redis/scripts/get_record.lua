-- Reads a record: returns the server's time in µs, and the stored text.
local time = redis.call('TIME')
return { time[1] * 1000000 + time[2], redis.call('GET', KEYS[1]) }

-- The server's time: in µs, and in seconds.
local time = call('TIME')
local now, now_secs = time[1] * 1000000 + time[2], tonumber(time[1])

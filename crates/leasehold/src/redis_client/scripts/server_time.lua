-- The server's time in µs, as 16 digits and as a number.
local time = call('TIME')
local clock = time[1] .. sub('00000' .. time[2], -6)
local now = num(clock)

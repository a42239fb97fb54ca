local call, fmt, sub, num = redis.call, string.format, string.sub, tonumber
local time = call('TIME')
-- The time in microseconds, as 16 digits.
local clock = time[1] .. sub('00000' .. time[2], -6)

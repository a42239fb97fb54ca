local call, fmt, sub, num = redis.call, string.format, string.sub, tonumber
-- The field `m` and each message begin with the number of their format. Another one is an error.
local FORMAT = '1'
local time = call('TIME')
-- The time in microseconds, as 16 digits.
local clock = time[1] .. sub('00000' .. time[2], -6)

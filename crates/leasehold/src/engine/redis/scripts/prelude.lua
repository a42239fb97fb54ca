local call, fmt, sub, byte, num = redis.call, string.format, string.sub, string.byte, tonumber
local NONE, ZERO = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0', '0000000000000000'

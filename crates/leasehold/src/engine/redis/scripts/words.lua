local call, fmt, sub, byte, num = redis.call, string.format, string.sub, string.byte, tonumber

local call, fmt, sub, byte, num = redis.call, string.format, string.sub, string.byte, tonumber
local NONE, ZERO = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0', '0000000000000000'
-- Every stored value and every message begins with the number of its format. `check` refuses a
-- value in another format: it must never count as a free lock.
local FORMAT = '1'
local function check(text)
  -- A byte that is no text would break the connection.
  if text and sub(text, 1, 1) ~= FORMAT then error('unknown format ' .. (string.match(text, '^%d') or '?')) end
  return text
end

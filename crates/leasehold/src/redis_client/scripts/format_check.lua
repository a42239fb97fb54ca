-- Refuses a value in another format. It must never count as a free lock.
local function refuse(packed)
  -- A byte that is no text would break the connection.
  local found = string.match(packed, '^%d')
  error('unknown format ' .. (found ~= FORMAT and found or '?'))
end
-- The letter for the kind of a stored value.
local function kind_of(packed)
  local format, kind
  if #packed > 1 then format, kind = decode('c1c1', packed) end
  if format ~= FORMAT then refuse(packed) end
  return kind
end

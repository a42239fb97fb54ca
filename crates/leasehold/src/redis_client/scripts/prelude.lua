local call, encode, decode, sub = redis.call, struct.pack, struct.unpack, string.sub
-- An id that no claim and no owner has.
local NONE = string.rep('\0', 16)
-- Every stored value and every message begins with the number of its format and a letter for its
-- kind. The functions `read_…` and `write_…` come from the layouts: see `redis_client/layout.rs`.
local FORMAT = '1'
-- A server's run is stored as the first digits of its run_id.
local RUN_DIGITS = 8
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

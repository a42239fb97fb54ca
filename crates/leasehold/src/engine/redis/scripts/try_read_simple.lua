-- The simple state in a field `m`; nil if it is something else, also if another program or another
-- format has taken the key.
local function try_read_simple(main)
  if type(main) ~= 'string' then return nil end
  local is_readable, simple = pcall(read_simple, main)
  return is_readable and simple or nil
end

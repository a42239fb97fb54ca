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
-- Whether an error means that a value is not what these scripts write, and not that the server
-- refused a command.
local function is_damage(problem)
  local text = type(problem) == 'table' and problem.err or tostring(problem)
  for _, cause in ipairs({ 'unknown format', 'unknown state', 'data string too short', 'WRONGTYPE' }) do
    if string.find(text, cause, 1, true) then return true end
  end
  return false
end
-- Calls `act` for one lock of several. If that lock is damaged, or another program has taken its
-- key, the reply is '0', and the other locks are not affected.
local function isolate(act, ...)
  local is_done, reply = pcall(act, ...)
  if is_done then return reply end
  if is_damage(reply) then return '0' end
  -- Fails again, now with the line in the script, by which the client names a denied command.
  return act(...)
end

-- Releases a claim. KEYS: the lock. ARGV: claim, -, retention. Returns 1: it held; 2: it waited; 0:
-- it did not exist.
local key, claim = KEYS[1], ARGV[1]
local main = call('HGET', key, 'm')
if not main then return 0 end
local kind = byte(main)
if kind == 72 or kind == 66 then
  if sub(main, 44, 59) ~= claim then return 0 end
  if type(redis.pcall('HSET', key, 'm', 'F' .. sub(main, 2, 27))) == 'table' then
    -- A server that is out of memory lets a script continue once it has written. HDEL needs no
    -- memory.
    call('HDEL', key, '')
    call('HSET', key, 'm', 'F' .. sub(main, 2, 27))
  end
  if kind == 66 then
    local name = sub(main, 60, 59 + num(sub(main, 28, 43)))
    local group = call('GET', name)
    if group then call('SETRANGE', name, 16, fmt('%010.0f', sub(group, 17, 26) - 1)) end
  end
  return 1
end
if kind == 70 then return 0 end

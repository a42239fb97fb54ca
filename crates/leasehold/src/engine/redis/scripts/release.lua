-- Releases a claim. KEYS: the lock. ARGV: claim, -, retention. Returns 1: it held; 2: it waited; 0:
-- it did not exist.
local key, claim = KEYS[1], ARGV[1]
local main = call('HGET', key, 'm')
if not main then return 0 end
local kind = byte(check(main), 2)
if kind == 72 or kind == 66 then
  if sub(main, 45, 60) ~= claim then return 0 end
  if type(redis.pcall('HSET', key, 'm', FORMAT .. 'F' .. sub(main, 3, 28))) == 'table' then
    -- A server that is out of memory lets a script continue once it has written. HDEL needs no
    -- memory.
    call('HDEL', key, '')
    call('HSET', key, 'm', FORMAT .. 'F' .. sub(main, 3, 28))
  end
  if kind == 66 then
    local name = sub(main, 61, 60 + num(sub(main, 29, 44)))
    local group = check(call('GET', name))
    if group then call('SETRANGE', name, 17, fmt('%010.0f', sub(group, 18, 27) - 1)) end
  end
  return 1
end
if kind == 70 then return 0 end

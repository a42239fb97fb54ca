-- Ends a claim. KEYS: the lock. ARGV: claim, -, retention. Answers 1: it held; 2: it waited; 0: it was not there.
local key, claim = KEYS[1], ARGV[1]
local main = call('HGET', key, 'm')
if not main then return 0 end
local kind = byte(main)
if kind == 72 or kind == 66 then
  if sub(main, 44, 59) ~= claim then return 0 end
  if kind == 66 then
    local name = sub(main, 60, 59 + num(sub(main, 28, 43)))
    local bundle = call('GET', name)
    if bundle then call('SETRANGE', name, 16, fmt('%010.0f', sub(bundle, 17, 26) - 1)) end
  end
  call('HSET', key, 'm', 'F' .. sub(main, 2, 27))
  return 1
end
if kind == 70 then return 0 end

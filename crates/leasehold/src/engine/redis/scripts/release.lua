-- Ends a claim. ARGV: claim, -, retention. Answers 1: it held; 2: it waited; 0: it was not there.
local main = call('HGET', KEYS[1], 'm')
if not main then return 0 end
local kind = byte(main)
if kind == 72 then
  if sub(main, 44, 59) ~= ARGV[1] then return 0 end
  call('HSET', KEYS[1], 'm', 'F' .. sub(main, 2, 27))
  return 1
end
if kind == 70 then return 0 end

-- KEYS: the lock. ARGV: claim, whether to queue, retention (s), TTL (s, rounded up), party.
local main = call('HGET', KEYS[1], 'm')
local kind = main and byte(main)
if frozen == 0 and byte(ARGV[5]) == 69 and (not kind or kind == 70
    or kind == 72 and (sub(main, 44, 59) == ARGV[1] or sub(main, 28, 43) + sub(main, 61, 76) <= now)) then
  -- Wanted alone, and free or ours: no more than this is needed.
  local token, touched = clock, 0
  if kind then
    local last = sub(main, 2, 17)
    touched = sub(main, 18, 27)
    if kind == 72 and sub(main, 44, 59) == ARGV[1] and sub(main, 28, 43) + sub(main, 61, 76) > now then
      token = last
    elseif last >= clock then
      token = fmt('%016.0f', last + 1)
    end
  end
  if time[1] - touched + ARGV[4] > ARGV[3] / 2 then
    call('HSET', KEYS[1], 'm', 'H' .. token .. time[1] .. clock .. ARGV[1] .. ARGV[5])
    call('EXPIRE', KEYS[1], ARGV[4] + ARGV[3])
  else
    call('HSET', KEYS[1], 'm', 'H' .. token .. touched .. clock .. ARGV[1] .. ARGV[5])
  end
  return num(token)
end

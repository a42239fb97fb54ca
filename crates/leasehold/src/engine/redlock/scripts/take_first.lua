-- Nobody is there: the same as below, in fewer words.
if alone and not found and (ARGV[4] > gone or ARGV[4] == ZERO) and given <= gone then
  local from = clock
  if gone > from then from = gone end
  if ARGV[4] > from then from = ARGV[4] end
  call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ARGV[4] .. clock .. ARGV[5])
  call('EXPIREAT', KEYS[1], fmt('%.0f', math.ceil((from + sub(ARGV[5], 2, 13)) / 1000000) + ARGV[3]))
  if ARGV[4] > ZERO then return 1 end
  return 'Y' .. gone .. clock .. ZERO .. ZERO
end

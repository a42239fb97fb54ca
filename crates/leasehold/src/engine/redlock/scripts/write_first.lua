-- Only our own claim is there, in time and without a token: the same as below, in fewer words.
if alone and found and sub(found, 1, 32) == ARGV[2] .. ZERO and ARGV[4] > gone
  and sub(found, 33, 48) + sub(found, 50, 61) > now then
  local from = clock
  if ARGV[4] > from then from = ARGV[4] end
  call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ARGV[4] .. clock .. sub(found, 49))
  call('EXPIREAT', KEYS[1], fmt('%.0f', math.ceil((from + sub(found, 50, 61)) / 1000000) + ARGV[3]))
  return 'S'
end

-- ARGV: the lowest version, stale for, keep for.
bump()
if ARGV[3] > version then version = ARGV[3] end
if num(ARGV[3]) > 0 then
  local until_then = plus(clock, ARGV[5])
  if until_then > row_until then row_until = until_then end
end
age(ARGV[4])
keep_to(plus(clock, ARGV[5]))
save()
return 0

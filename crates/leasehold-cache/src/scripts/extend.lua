-- ARGV: mark, mark for, keep for.
local ours = mark == ARGV[3]
if ours then
  mark_until = plus(clock, ARGV[4])
  keep_to(plus(mark_until, ARGV[5]))
  save()
end
return ours and 1 or 0

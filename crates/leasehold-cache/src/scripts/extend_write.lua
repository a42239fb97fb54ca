-- ARGV: mark, mark for, keep for.
local is_held = mark == ARGV[3]
if is_held then
  mark_until = plus(clock, ARGV[4])
  keep_to(plus(mark_until, ARGV[5]))
  save()
end
return is_held and 1 or 0

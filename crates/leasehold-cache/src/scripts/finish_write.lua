-- ARGV: mark, keep for, whether there is a value, its generation, and the load.
local undisturbed = ARGV[5] == '0' or ARGV[6] == generation
bump()
keep_to(plus(clock, ARGV[4]))
outdate()
if mark ~= ARGV[3] then
  save()
  return 0
end
mark, mark_until = NOBODY, ZERO
if undisturbed and ARGV[5] == '1' and (ARGV[9] == '' or ARGV[9] >= version) then
  if ARGV[7] == 'N' then row_until = ZERO end
  fill(7)
end
save()
return undisturbed and 1 or 0

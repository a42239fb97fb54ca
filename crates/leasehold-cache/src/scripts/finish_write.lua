-- ARGV: mark, keep for, 1 if there is a value, its generation, and the load. Reply: 1 if the mark
-- was there and no other write came between; else 0.
local mark, keep_for, has_value = unpack(ARGV, 3)
local undisturbed = has_value == '0' or tonumber(ARGV[6]) == entry.generation
start_generation()
keep_to(now + keep_for)
outdate()
if entry.mark ~= mark then
  save()
  return 0
end
entry.mark, entry.mark_until = NONE, 0
if undisturbed and has_value == '1' and (ARGV[9] == '' or ARGV[9] >= entry.version) then
  if ARGV[7] == 'N' then entry.row_until = 0 end
  fill(7)
end
save()
return undisturbed and 1 or 0

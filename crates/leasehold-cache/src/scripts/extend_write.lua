-- ARGV: mark, mark for, keep for. Reply: 1 if the mark is still there, else 0.
local mark, mark_for, keep_for = unpack(ARGV, 3)
if entry.mark ~= mark then return 0 end
entry.mark_until = now + mark_for
keep_to(entry.mark_until + keep_for)
save()
return 1

-- ARGV: mark, token, mark for, stale for, keep for. Reply: 1 and the generation; or 0 and the token
-- of a newer writer.
local mark, token, mark_for, stale_for, keep_for = unpack(ARGV, 3)
if token < entry.token then return { 0, entry.token } end
entry.token = token
start_generation()
age(stale_for)
entry.mark, entry.mark_until = mark, now + mark_for
keep_to(entry.mark_until + keep_for)
save()
return { 1, entry.generation }

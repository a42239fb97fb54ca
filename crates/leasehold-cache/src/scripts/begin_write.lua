-- ARGV: mark, token, mark for, stale for, keep for. Returns the generation, or the token of a newer
-- writer.
if ARGV[4] < token then return { 0, token } end
token = ARGV[4]
bump()
age(ARGV[6])
mark, mark_until = ARGV[3], plus(clock, ARGV[5])
keep_to(plus(mark_until, ARGV[7]))
save()
return { 1, generation }

-- ARGV: the lowest version, stale for, keep for. Reply: 0.
local version, stale_for, keep_for = unpack(ARGV, 3)
start_generation()
if version > entry.version then entry.version = version end
if version > NO_NUMBER then entry.row_until = math.max(entry.row_until, now + keep_for) end
age(stale_for)
keep_to(now + keep_for)
save()
return 0

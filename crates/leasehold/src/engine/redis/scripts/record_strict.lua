-- Before record.lua: nothing is written in another run of the server than that in which the record was read. The third argument is that run, the fourth since
-- when it lasts.
if ARGV[3] ~= course or num(ARGV[4]) ~= began then return { now } end

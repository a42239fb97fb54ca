-- Comes before set_record.lua: does not write if the server's run is not the one in which the
-- record was read. ARGV: two more: that run, and its start.
if ARGV[3] ~= run or tonumber(ARGV[4]) ~= run_start then return { now } end

-- Without strict mode. The last argument is this server's run: the first 8 digits of its run_id.
local frozen, extra, floor, born, strict = 0, 1, ZERO, 0, false
local RUN = ARGV[#ARGV]

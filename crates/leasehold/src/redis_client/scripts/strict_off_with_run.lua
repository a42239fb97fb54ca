-- Without strict mode. The last argument is this server's run: the first digits of its run_id.
local run_arguments, cool_down_until, run_start, strict = 1, 0, 0, false
local RUN = ARGV[#ARGV]

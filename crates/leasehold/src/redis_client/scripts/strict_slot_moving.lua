-- Strict mode while a slot is moving and the key of strict mode is on the other node. Held locks
-- stay held and can be released; there are no new grants. A waiter sends its next heartbeat soon.
-- The last two arguments are as in strict.lua.
local run_arguments, cool_down_until, run_start = 2, now + 250000, now + 250000

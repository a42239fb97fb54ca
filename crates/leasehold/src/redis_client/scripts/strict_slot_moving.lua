-- Strict mode while a slot is moving and the key of strict mode is on the other node. Held locks
-- stay held and can be released; there are no new grants. A waiter sends its next heartbeat soon.
-- The last two arguments are as in strict.lua.
local frozen, extra, floor, born = now + 250000, 2, ZERO, now + 250000

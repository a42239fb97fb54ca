-- Strict mode while a slot is on its way and its own key is on the other side: what is held stays held and can be given back, and
-- nobody new is let in. Whoever waits looks again soon. The last two arguments are as in strict.lua.
local frozen, extra, floor, born = now + 250000, 2, ZERO, now + 250000

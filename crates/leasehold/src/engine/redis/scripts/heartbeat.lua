-- A waiter's heartbeat: returns its state, and extends it.
--
-- KEYS: the lock. ARGV: retention (s), claim. Reply: as of `attempt`; { 'busy', … } if the claim is
-- not there; { 'force-released' }.
local id = ARGV[2]
local main = call('HGET', KEYS[1], 'm')
if not main then return { 'busy', -1, -1 } end

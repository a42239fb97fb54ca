-- Returns a claim's state, and counts as its heartbeat. ARGV: claim, -, retention, TTL (s).
local main = call('HGET', KEYS[1], 'm')
if not main then return { 0, -1 } end

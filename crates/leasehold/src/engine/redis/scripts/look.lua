-- How a claim stands; it shows that it is alive. ARGV: claim, -, retention, TTL (s).
local main = call('HGET', KEYS[1], 'm')
if not main then return { 0, -1 } end

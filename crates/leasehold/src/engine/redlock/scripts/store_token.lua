-- Stores a token under a claim.
local key, claim = KEYS[1], ARGV[1]
local stored, mine, same, _, rest = see(key, text, claim, ARGV[5])
local last = later(stored, floor)
if frozen > now then return 'A' end
if not mine or sub(mine, 17, 32) ~= ARGV[2] then return 'G' end
if sub(mine, 33, 48) == token then return 'S' end
if same > ZERO and same ~= token then return 'B' .. same end
if token <= last and token ~= same then return 'L' .. last end
store(key, rest, stored, claim, ARGV[2], token, sub(mine, 69), ARGV[3])
return 'S'

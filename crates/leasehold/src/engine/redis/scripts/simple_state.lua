-- For how long the key of a lock is kept after its last claim has ended.
local RETENTION = tonumber(ARGV[1])

-- The second in which the key of a lock must expire, at the earliest, if a claim now begins to last
-- for `ttl`; `kept` is the second in which it does expire. Far enough ahead it stays.
local function later_expiry(kept, ttl)
  local secs = math.ceil(ttl / 1000000)
  if now_secs + secs + RETENTION / 2 > kept then return now_secs + secs + RETENTION end
  return kept
end

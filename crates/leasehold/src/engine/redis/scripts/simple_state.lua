-- For how long the key of a lock is kept after its last claim has ended.
local RETENTION = tonumber(ARGV[1])

-- The second in which the key of a lock must expire, at the earliest, if a claim now begins to last
-- for `ttl`; `kept` is the second in which it does expire. Far enough ahead it stays.
local function later_expiry(kept, ttl)
  local secs = math.ceil(ttl / 1000000)
  if now_secs + secs + RETENTION / 2 > kept then return now_secs + secs + RETENTION end
  return kept
end

-- Whether the lease in a simple state has certainly ended. What another run wrote, or a clock that
-- was ahead, counts from when this run first sees it. A group is not looked up.
local function is_over(simple)
  return simple.group == '' and simple.run == RUN and simple.since <= now
    and simple.since + read_contender(simple.contender).ttl <= now
end

-- Acquires a lock, or joins its queue.
--
-- KEYS: the lock. ARGV: retention (s), claim, `queue` or `try`, contender.
-- Reply: the token, or one of
--   { 'queued', how many are ahead, recheck (µs), place, cool-down (µs) }
--   { 'busy', recheck, cool-down }
--   { 'limit', the semaphore's limit }: the claim states another limit
--   { 'held', mode, permits, limit }: its owner holds the lock, but less than what is wanted
-- `recheck` is when the lock may become free without a release, `cool-down` how long the cool-down
-- of strict mode still lasts while no holder is known; -1: neither.
local key, id = KEYS[1], ARGV[2]
local main = call('HGET', key, 'm')
-- The common case: no claim waits, and the lock is free, or held by this claim, and wanted
-- exclusively. What another run wrote, groups and waiters are left to the functions below, which
-- do the same. Creating them takes longer than all of this.
local simple = main and read_simple(main)
if cool_down_until == 0 and (simple or not main) then
  local wanted = read_contender(ARGV[4])
  local is_free = not simple or simple.claim == NONE or is_over(simple)
  if wanted.mode == 'E' and (is_free or simple.claim == id and simple.group == '') then
    local token, kept = now, simple and simple.kept or 0
    if simple then token = is_free and math.max(simple.token + 1, now) or simple.token end
    local keep_until = later_expiry(kept, wanted.ttl)
    call('HSET', key, 'm', write_simple({
      token = token, kept = keep_until, since = now, claim = id, run = RUN, group = '', contender = ARGV[4],
    }))
    if keep_until ~= kept then call('EXPIRE', key, keep_until - now_secs) end
    return token
  end
end

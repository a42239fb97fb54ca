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
local key, id, contender = KEYS[1], ARGV[2], ARGV[4]
local main = call('HGET', key, 'm')
-- The two common cases of a mutex. The functions below do the same, and everything else. To create
-- them takes longer than all of this. What another run wrote, or a clock that was ahead, is left to
-- them.
READ(wants, contender.ttl, contender)
if cool_down_until == 0 and wants_mode == 'E' then
  if not main or IS(simple, main) then
    -- No claim waits, and the lock is free, or held by this claim.
    READ(old, simple, main or EMPTY(simple))
    local is_mine = old_claim == id and old_group == ''
    local is_free = old_claim == NONE
    if not is_free and old_group == '' and old_run == RUN and old_since <= now then
      READ(held, contender.ttl, main, old_next)
      is_free = old_since + held_ttl <= now
    end
    if is_free or is_mine then
      local token = is_free and math.max(old_token + 1, now) or old_token
      local new_token, new_kept, new_since, new_claim = token, later_expiry(old_kept, wants_ttl), now, id
      local new_run, new_group = RUN, ''
      call('HSET', key, 'm', WRITE(new, simple) .. contender)
      if new_kept ~= old_kept then call('EXPIRE', key, new_kept - now_secs) end
      return token
    end
  elseif IS(queue, main) and ARGV[3] == 'queue' then
    -- The lock has one exclusive holder, and the claim joins the queue. An owner may re-enter.
    READ(lock, queue, main)
    READ(wants, contender.owner, contender)
    if wants_owner == NONE and lock_exclusive == 1 and lock_holders == 1 and lock_soonest > now and lock_run == RUN
      and lock_written <= now then
      local stored = call('HMGET', key, id, lock_last_waiter)
      if not stored[1] and (lock_waiters == 0 or stored[2]) then
        local place, ahead, kept = math.max(lock_place + 1, now), lock_waiters, lock_kept
        local new_token, new_since, new_place, new_inherited = 0, now, place, 0
        local new_before, new_behind = lock_last_waiter, NONE
        lock_kept, lock_place, lock_last_waiter = later_expiry(kept, wants_ttl), place, id
        lock_waiters, lock_written = ahead + 1, now
        if ahead == 0 then
          lock_first_waiter = id
          call('HSET', key, id, WRITE(new, claim) .. contender, 'm', WRITE(lock, queue))
        else
          READ(last, claim, stored[2])
          last_behind = id
          call('HSET', key, id, WRITE(new, claim) .. contender,
            new_before, WRITE(last, claim) .. sub(stored[2], last_next), 'm', WRITE(lock, queue))
        end
        if lock_kept ~= kept then call('EXPIRE', key, lock_kept - now_secs) end
        return { 'queued', ahead, ahead == 0 and lock_soonest - now or -1, place, -1 }
      end
    end
  end
end

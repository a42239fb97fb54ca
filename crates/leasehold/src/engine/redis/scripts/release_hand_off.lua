-- Hands off from the only holder, which is exclusive, to the first waiter, which wants the same. The
-- functions below do the same, and everything else. To create them takes longer than all of this.
if cool_down_until == 0 and IS(queue, main) then
  READ(lock, queue, main)
  local stored = lock_exclusive == 1 and lock_holders == 1 and lock_first_holder == id and lock_run == RUN
    and lock_written <= now and lock_waiters > 0 and call('HGET', key, lock_first_waiter)
  if stored then
    READ(next, claim, stored)
    READ(wants, contender.inbox, stored, next_next)
    -- The next claims of one owner are granted together.
    local is_alone = wants_owner == NONE or next_behind == NONE
    if wants_mode == 'E' and is_alone and next_inherited == 0 and next_since + wants_ttl > now
      and call('PUBSUB', 'NUMSUB', wants_inbox)[2] > 0 then
      local claim, waited_at, kept, after = lock_first_waiter, next_place, lock_kept, next_behind
      lock_token, lock_place = math.max(lock_token + 1, now), math.max(lock_place + 1, now)
      next_token, next_since, next_place, next_inherited = lock_token, now, lock_place, 0
      next_before, next_behind = NONE, NONE
      lock_first_holder, lock_last_holder, lock_first_waiter = claim, claim, after
      if after == NONE then lock_last_waiter = NONE end
      lock_kept, lock_soonest = later_expiry(kept, wants_ttl), now + wants_ttl
      lock_waiters, lock_written = lock_waiters - 1, now
      call('HDEL', key, id)
      call('HSET', key, claim, WRITE(next, claim) .. sub(stored, next_next), 'm', WRITE(lock, queue))
      if lock_kept ~= kept then call('EXPIRE', key, lock_kept - now_secs) end
      local granted_claim, granted_token, granted_place = claim, lock_token, waited_at
      call('PUBLISH', wants_inbox, WRITE(granted, granted))
      local text = after ~= NONE and call('HGET', key, after)
      if text then
        -- The claim has just become the first in the queue. An earlier reply may have put off its
        -- next heartbeat until after the end of this lease.
        READ(first, claim, text)
        READ(other, contender.inbox, text, first_next)
        local recheck_claim = after
        if wants_ttl * 3 < other_ttl then call('PUBLISH', other_inbox, WRITE(recheck, recheck)) end
      end
      return 1
    end
  end
end

-- Hands off from the only holder, which is exclusive, to the first waiter, which wants the same.
-- The rest of this script handles this case as well, and all others.
if frozen == 0 and sub(main, 125, 142) == '000001000000000001' and sub(main, 29, 44) == claim
  and sub(main, 197, 204) == RUN and sub(main, 181, 196) <= clock then
  local first = sub(main, 61, 76)
  local rec = call('HGET', key, first)
  local ttl = rec and num(sub(rec, 82, 93))
  local inbox = rec and sub(key, 1, num(sub(rec, 110, 112))) .. 'i' .. sub(rec, 113, 128)
  if rec and byte(rec, 81) == 69 and sub(rec, 17, 32) + ttl > now and call('PUBSUB', 'NUMSUB', inbox)[2] > 0 then
    local token, at, after, kept = sub(main, 3, 18), sub(main, 93, 108), sub(rec, 65, 80), sub(main, 19, 28)
    token = token < clock and clock or fmt('%016.0f', token + 1)
    local place = at < clock and clock or fmt('%016.0f', at + 1)
    local long = math.ceil(ttl / 1000000)
    local old = time[1] + long + ARGV[3] / 2 > num(kept)
    if old then kept = fmt('%010.0f', time[1] + long + ARGV[3]) end
    call('HDEL', key, claim)
    call('HSET', key, first, token .. clock .. place .. NONE .. NONE .. sub(rec, 81), 'm', FORMAT .. 'R' .. token .. kept .. first .. first
      .. (after == NONE and NONE .. NONE or after .. sub(main, 77, 92)) .. place .. ZERO .. sub(main, 125, 142)
      .. fmt('%06d', sub(main, 143, 148) - 1) .. sub(main, 149, 180) .. clock .. RUN)
    if old then call('EXPIRE', key, long + ARGV[3]) end
    call('PUBLISH', inbox, FORMAT .. 'G' .. first .. token .. sub(rec, 33, 48))
    local next = after ~= NONE and call('HGET', key, after)
    -- An earlier answer may have put off the next heartbeat of the new first waiter until after the
    -- end of this lease.
    if next and ttl * 3 < num(sub(next, 82, 93)) then
      call('PUBLISH', sub(key, 1, num(sub(next, 110, 112))) .. 'i' .. sub(next, 113, 128), FORMAT .. 'L' .. after)
    end
    return 1
  end
end

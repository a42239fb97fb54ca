-- Acquires a lock, or joins its queue. KEYS: the lock. ARGV: claim, whether to queue, retention
-- (s), TTL (s, rounded up), contender.
local key, claim, contender = KEYS[1], ARGV[1], ARGV[5]
local main = call('HGET', key, 'm')
local kind = check(main) and (byte(main, 2) or 0)
-- Most locks are mutexes without an owner. For them this part, up to the tables, does the same as
-- what follows the tables, in fewer steps. First case: the lock is free or held by this claim,
-- and wanted exclusively.
if frozen == 0 and byte(contender) == 69 then
  local kept, mine, live, ours = '0', false, false, true
  if kind then kept = sub(main, 19, 28) end
  if kind == 72 then
    mine = sub(main, 45, 60) == claim
    -- What another run wrote, or a clock that was ahead, is left to the tables.
    ours = sub(main, -8) == RUN and sub(main, 29, 44) <= clock
    live = not ours or sub(main, 29, 44) + sub(main, 62, 73) > now
  elseif kind == 82 then
    ours = sub(main, 197, 204) == RUN and sub(main, 181, 196) <= clock
  end
  -- The second in which the key expires.
  local old = time[1] + ARGV[4] + ARGV[3] / 2 > num(kept)
  if old then kept = fmt('%010.0f', time[1] + ARGV[4] + ARGV[3]) end
  if not kind or kind == 70 or kind == 72 and (mine or not live) then
    local token = clock
    if kind then
      local last = sub(main, 3, 18)
      if mine and live then
        token = last
      elseif last >= clock then
        token = fmt('%016.0f', last + 1)
      end
    end
    call('HSET', key, 'm', FORMAT .. 'H' .. token .. kept .. clock .. claim .. contender .. RUN)
    if old then call('EXPIRE', key, ARGV[4] + ARGV[3]) end
    return token
  end
  if ours and ARGV[2] == '1' and sub(contender, 14, 29) == NONE then
    -- Second case: the lock has one exclusive holder, and the claim joins the queue, as the first
    -- or behind others.
    local before, at, ahead, till, fields
    if kind == 72 then
      local holder, token = sub(main, 45, 60), sub(main, 3, 18)
      at, ahead, before, till = token, 0, NONE, sub(main, 29, 44) + sub(main, 62, 73)
      fields = { holder, token .. sub(main, 29, 44) .. token .. NONE .. NONE .. sub(main, 61, -9) }
      main = FORMAT .. 'R' .. token .. kept .. holder .. holder .. claim .. claim .. token .. ZERO
        .. '000001000000000001000000000000' .. ZERO .. '0000000000'
    elseif kind == 82 and sub(main, 125, 142) == '000001000000000001' and sub(main, 143, 148) < '999990' then
      before = sub(main, 77, 92)
      local recs = call('HMGET', key, claim, sub(main, 29, 44), before)
      till = sub(recs[2], 17, 32) + sub(recs[2], 82, 93)
      if not recs[1] and till > now then
        at, ahead, fields = sub(main, 93, 108), num(sub(main, 143, 148)), {}
        if recs[3] then fields = { before, sub(recs[3], 1, 64) .. claim .. sub(recs[3], 81) } end
      end
    end
    if fields then
      at = at < clock and clock or fmt('%016.0f', at + 1)
      call('HSET', key, claim, ZERO .. clock .. at .. before .. NONE .. contender, 'm', sub(main, 1, 18)
        .. kept .. sub(main, 29, 60) .. (ahead == 0 and claim or sub(main, 61, 76)) .. claim .. at
        .. sub(main, 109, 142) .. fmt('%06d', ahead + 1) .. sub(main, 149, 180) .. clock .. RUN, unpack(fields))
      if old then call('EXPIRE', key, ARGV[4] + ARGV[3]) end
      return { 1, ahead, ahead == 0 and till - now or -1, at }
    end
  end
end

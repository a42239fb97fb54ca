-- Acquires a lock, or joins its queue. KEYS: the lock. ARGV: claim, whether to queue, retention
-- (s), TTL (s, rounded up), contender.
local key, claim, contender = KEYS[1], ARGV[1], ARGV[5]
local main = call('HGET', key, 'm')
local kind = main and byte(main)
-- Most locks are mutexes without an owner. For them this part, up to the tables, does the same as
-- what follows the tables, in fewer steps. First case: the lock is free or ours, and wanted
-- exclusively.
if frozen == 0 and byte(contender) == 69 then
  local kept, mine, live, ours = '0', false, false, true
  if kind then kept = sub(main, 18, 27) end
  if kind == 72 then
    mine = sub(main, 44, 59) == claim
    -- What another run wrote, or a clock that was ahead, is left to the tables.
    ours = sub(main, -8) == RUN and sub(main, 28, 43) <= clock
    live = not ours or sub(main, 28, 43) + sub(main, 61, 72) > now
  elseif kind == 82 then
    ours = sub(main, 196, 203) == RUN and sub(main, 180, 195) <= clock
  end
  -- The second in which the key expires.
  local old = time[1] + ARGV[4] + ARGV[3] / 2 > num(kept)
  if old then kept = fmt('%010.0f', time[1] + ARGV[4] + ARGV[3]) end
  if not kind or kind == 70 or kind == 72 and (mine or not live) then
    local token = clock
    if kind then
      local last = sub(main, 2, 17)
      if mine and live then
        token = last
      elseif last >= clock then
        token = fmt('%016.0f', last + 1)
      end
    end
    call('HSET', key, 'm', 'H' .. token .. kept .. clock .. claim .. contender .. RUN)
    if old then call('EXPIRE', key, ARGV[4] + ARGV[3]) end
    return token
  end
  if ours and ARGV[2] == '1' and sub(contender, 14, 29) == NONE then
    -- Second case: the lock has one exclusive holder, and we wait, as the first or behind others.
    local before, at, ahead, till, fields
    if kind == 72 then
      local holder, token = sub(main, 44, 59), sub(main, 2, 17)
      at, ahead, before, till = token, 0, NONE, sub(main, 28, 43) + sub(main, 61, 72)
      fields = { holder, token .. sub(main, 28, 43) .. token .. NONE .. NONE .. sub(main, 60, -9) }
      main = 'R' .. token .. kept .. holder .. holder .. claim .. claim .. token .. ZERO
        .. '000001000000000001000000000000' .. ZERO .. '0000000000'
    elseif kind == 82 and sub(main, 124, 141) == '000001000000000001' and sub(main, 142, 147) < '999990' then
      before = sub(main, 76, 91)
      local recs = call('HMGET', key, claim, sub(main, 28, 43), before)
      till = sub(recs[2], 17, 32) + sub(recs[2], 82, 93)
      if not recs[1] and till > now then
        at, ahead, fields = sub(main, 92, 107), num(sub(main, 142, 147)), {}
        if recs[3] then fields = { before, sub(recs[3], 1, 64) .. claim .. sub(recs[3], 81) } end
      end
    end
    if fields then
      at = at < clock and clock or fmt('%016.0f', at + 1)
      call('HSET', key, claim, ZERO .. clock .. at .. before .. NONE .. contender, 'm', sub(main, 1, 17)
        .. kept .. sub(main, 28, 59) .. (ahead == 0 and claim or sub(main, 60, 75)) .. claim .. at
        .. sub(main, 108, 141) .. fmt('%06d', ahead + 1) .. sub(main, 148, 179) .. clock .. RUN, unpack(fields))
      if old then call('EXPIRE', key, ARGV[4] + ARGV[3]) end
      return { 1, ahead, ahead == 0 and till - now or -1, at }
    end
  end
end

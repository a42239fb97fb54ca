-- Renews leases. KEYS: the locks. ARGV: -, key of a group that they join (or empty), retention,
-- longest TTL (s), and the claims. Returns for each claim 0: lost; 1: renewed; 2: renewed, in the
-- group.
local answers, rich, groups, joined = {}, {}, {}, 0
-- A server that is out of memory lets a script continue once it has written. HDEL needs no memory:
-- held leases stay held.
redis.pcall('HDEL', KEYS[1], '')
-- The group exists before any lease points to it: if the script fails half-way, no lease ends
-- because of that.
if ARGV[2] ~= '' then call('SET', ARGV[2], FORMAT .. clock .. '0000000000' .. RUN, 'EX', ARGV[4] + ARGV[3]) end
for i = 1, #ARGV - 4 - extra do
  -- If another program or another format has taken one lock's key, the other leases are renewed all
  -- the same.
  local main, answer = redis.pcall('HGET', KEYS[i], 'm'), '0'
  local kind = type(main) == 'string' and sub(main, 1, 1) == FORMAT and byte(main, 2)
  if type(main) == 'table' and not string.find(main.err, 'WRONGTYPE', 1, true) then return main end
  if kind == 82 then
    rich[#rich + 1] = i
  elseif (kind == 72 or kind == 66) and sub(main, 45, 60) == ARGV[i + 4] then
    local since, from, to, run, name = sub(main, 29, 44), 61, -9, sub(main, -8), nil
    if kind == 66 then
      name = sub(main, 61, 60 + num(since))
      from, to = 61 + num(since), -1
      if groups[name] == nil then groups[name] = check(call('GET', name)) end
      -- Without its group the lease has expired.
      since, run = groups[name] and sub(groups[name], 2, 17) or ZERO, groups[name] and sub(groups[name], 28, 35) or RUN
    end
    if run ~= RUN or since > clock or since + sub(main, from + 1, from + 12) > now then
      local kept = sub(main, 19, 28)
      -- In a group the lease is checked on its own only after more than a TTL. By then it may have
      -- been renewed for one more TTL.
      local most = ARGV[2] ~= '' and ARGV[4] * 4 or ARGV[4]
      local old = time[1] + most + ARGV[3] / 2 > num(kept)
      if old then
        kept = fmt('%010.0f', time[1] + most + ARGV[3])
        call('EXPIRE', KEYS[i], most + ARGV[3])
      end
      local start = sub(main, 3, 18) .. kept
      if name then
        groups[name] = sub(groups[name], 1, 17) .. fmt('%010.0f', sub(groups[name], 18, 27) - 1) .. sub(groups[name], 28)
        call('SETRANGE', name, 0, groups[name])
      end
      if ARGV[2] ~= '' then
        call('HSET', KEYS[i], 'm', FORMAT .. 'B' .. start .. fmt('%016d', #ARGV[2]) .. ARGV[i + 4] .. ARGV[2] .. sub(main, from, to))
        joined, answer = joined + 1, '2'
      else
        call('HSET', KEYS[i], 'm', FORMAT .. 'H' .. start .. clock .. ARGV[i + 4] .. sub(main, from, to) .. RUN)
        answer = '1'
      end
    end
  end
  answers[i] = answer
end
if joined > 0 then
  call('SETRANGE', ARGV[2], 17, fmt('%010d', joined))
elseif ARGV[2] ~= '' then
  call('DEL', ARGV[2])
end
if #rich == 0 then return table.concat(answers) end

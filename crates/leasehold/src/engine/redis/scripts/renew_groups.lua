-- Renews groups of leases. KEYS: the groups. ARGV: for each its TTL (µs), how many leases it must
-- have, and how long the key is kept (s); then this server's run (of its run_id). Returns for each
-- 1: renewed; 0: it is missing, has another number of leases, or has expired. A group that was
-- written in another run is renewed, and gets this run.
local answers, RUN = {}, ARGV[#ARGV]
for i = 1, #KEYS do
  local group, answer = check(call('GET', KEYS[i])), '0'
  if group and sub(group, 18, 27) == ARGV[i * 3 - 1] then
    local since, ours = sub(group, 2, 17), sub(group, 28, 35) == RUN
    -- What another run wrote, or a clock that was ahead, counts from now on.
    if not ours or since > clock or since + ARGV[i * 3 - 2] > now then
      -- EXPIRE comes first: a server that is out of memory lets a script continue once it has
      -- written, and EXPIRE needs no memory.
      call('EXPIRE', KEYS[i], ARGV[i * 3])
      call('SETRANGE', KEYS[i], 1, clock)
      if not ours then call('SETRANGE', KEYS[i], 27, RUN) end
      answer = '1'
    end
  end
  answers[i] = answer
end
return table.concat(answers)

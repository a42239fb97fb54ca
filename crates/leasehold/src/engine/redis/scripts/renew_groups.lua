-- Renews groups of leases.
--
-- KEYS: the groups. ARGV: for each its TTL (µs), how many leases it must have, and how long the key
-- is kept (s); then this server's run (of its run_id). Reply: one digit for each: 1: renewed; 0: it
-- is missing, has another number of leases, or has expired. A group that was written in another run
-- is renewed, and gets this run.
local replies, RUN = {}, ARGV[#ARGV]
local function renew_group(i, key)
  local ttl, count, keep = tonumber(ARGV[i * 3 - 2]), tonumber(ARGV[i * 3 - 1]), ARGV[i * 3]
  local text = call('GET', key)
  local group = text and (read_group(text) or refuse(text))
  if not group or group.count ~= count then return '0' end
  -- What another run wrote, or a clock that was ahead, counts from now on.
  if group.run == RUN and group.since <= now and group.since + ttl <= now then return '0' end
  -- EXPIRE comes first: a server that is out of memory lets a script continue once it has written,
  -- and EXPIRE needs no memory.
  call('EXPIRE', key, keep)
  call('SET', key, write_group({ since = now, count = count, run = RUN }), 'KEEPTTL')
  return '1'
end
for i, key in ipairs(KEYS) do replies[i] = isolate(renew_group, i, key) end
return table.concat(replies)

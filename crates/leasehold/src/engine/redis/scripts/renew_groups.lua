-- Renews groups of leases.
--
-- KEYS: the groups. ARGV: for each its TTL (µs), how many leases it must have, and how long the key
-- is kept (s); then this server's run (of its run_id). Reply: one digit for each: 1: renewed; 0: it
-- is missing, has another number of leases, or has expired. A group that was written in another run
-- is renewed, and gets this run.
local replies, RUN = {}, ARGV[#ARGV]
for i, key in ipairs(KEYS) do
  local ttl, count, keep = tonumber(ARGV[i * 3 - 2]), tonumber(ARGV[i * 3 - 1]), ARGV[i * 3]
  local text, reply = call('GET', key), '0'
  local group = text and (read_group(text) or refuse(text))
  -- What another run wrote, or a clock that was ahead, counts from now on.
  if group and group.count == count and (group.run ~= RUN or group.since > now or group.since + ttl > now) then
    -- EXPIRE comes first: a server that is out of memory lets a script continue once it has
    -- written, and EXPIRE needs no memory.
    call('EXPIRE', key, keep)
    call('SET', key, write_group({ since = now, count = count, run = RUN }), 'KEEPTTL')
    reply = '1'
  end
  replies[i] = reply
end
return table.concat(replies)

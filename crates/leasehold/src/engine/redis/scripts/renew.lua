-- Renews leases.
--
-- KEYS: the locks. ARGV: retention (s), key of a group that they join (or empty), the longest TTL
-- (µs), and the claims. Reply: one digit for each: 0: lost; 1: renewed; 2: renewed, in the group.
local group_key, longest, replies, in_tables, groups, joined = ARGV[2], tonumber(ARGV[3]), {}, {}, {}, 0
-- A server that is out of memory lets a script continue once it has written. HDEL needs no memory:
-- held leases stay held.
redis.pcall('HDEL', KEYS[1], '')
local function store_group(count, ...)
  call('SET', group_key, write_group({ since = now, count = count, run = RUN }), ...)
end
-- The group exists before any lease points to it: if the script fails half-way, no lease ends
-- because of that.
if group_key ~= '' then store_group(0, 'EX', math.ceil(longest / 1000000) + RETENTION) end
local function renew_simple(i)
  local key, id = KEYS[i], ARGV[i + 3]
  local main = call('HGET', key, 'm')
  local simple = main and read_simple(main)
  if main and not simple then
    in_tables[#in_tables + 1] = i
    return '0'
  end
  if not simple or simple.claim ~= id then return '0' end
  local old_group, lease = simple.group, simple
  if old_group ~= '' then
    if groups[old_group] == nil then
      local text = call('GET', old_group)
      groups[old_group] = text and (read_group(text) or refuse(text)) or false
    end
    lease = groups[old_group]
  end
  -- Without its group the lease has expired.
  local has_ended = not lease or lease.run == RUN and lease.since <= now
    and lease.since + read_contender(simple.contender).ttl <= now
  if has_ended then return '0' end
  -- In a group the lease is checked on its own only after more than a TTL. By then it may have been
  -- renewed for one more TTL.
  local keep_until = later_expiry(simple.kept, group_key ~= '' and longest * 4 or longest)
  if keep_until ~= simple.kept then call('EXPIRE', key, keep_until - now_secs) end
  if old_group ~= '' then
    lease.count = math.max(lease.count - 1, 0)
    call('SET', old_group, write_group(lease), 'KEEPTTL')
  end
  simple.kept, simple.since, simple.run, simple.group = keep_until, now, RUN, group_key
  call('HSET', key, 'm', write_simple(simple))
  if group_key == '' then return '1' end
  joined = joined + 1
  return '2'
end
for i = 1, #ARGV - 3 - run_arguments do replies[i] = isolate(renew_simple, i) end
if joined > 0 then
  store_group(joined, 'KEEPTTL')
elseif group_key ~= '' then
  call('DEL', group_key)
end
if #in_tables == 0 then return table.concat(replies) end

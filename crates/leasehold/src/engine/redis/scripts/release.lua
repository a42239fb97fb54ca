-- Releases a claim.
--
-- KEYS: the lock. ARGV: retention (s), claim. Reply: 1: it held; 2: it waited; 0: it was not there.
local key, id = KEYS[1], ARGV[2]
local main = call('HGET', key, 'm')
if not main then return 0 end
-- The common case: no claim waits. Neither time nor the functions below are needed.
local simple = read_simple(main)
if simple then
  if simple.claim ~= id then return 0 end
  local group_key = simple.group
  simple.since, simple.claim, simple.group, simple.contender = 0, NONE, '', ''
  local free = write_simple(simple)
  if type(redis.pcall('HSET', key, 'm', free)) == 'table' then
    -- A server that is out of memory lets a script continue once it has written. HDEL needs no
    -- memory.
    call('HDEL', key, '')
    call('HSET', key, 'm', free)
  end
  local text = group_key ~= '' and call('GET', group_key)
  if text then
    local group = read_group(text) or refuse(text)
    group.count = group.count - 1
    call('SET', group_key, write_group(group), 'KEEPTTL')
  end
  return 1
end

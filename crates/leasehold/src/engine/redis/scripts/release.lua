-- Releases a claim.
--
-- KEYS: the lock. ARGV: retention (s), claim. Reply: 1: it held; 2: it waited; 0: it was not there.
local key, id = KEYS[1], ARGV[2]
local main = call('HGET', key, 'm')
if not main then return 0 end
-- The common case: no claim waits. Neither the time nor the functions below are needed.
if IS(simple, main) then
  READ(held, simple, main)
  if held_claim ~= id then return 0 end
  local group_key = held_group
  local group = group_key ~= '' and call('GET', group_key)
  if not group or IS(group, group) then
    if group then
      READ(left, group, group)
      left_count = math.max(left_count - 1, 0)
      group = WRITE(left, group)
    end
    held_since, held_claim, held_group = 0, NONE, ''
    local free = WRITE(held, simple)
    if type(redis.pcall('HSET', key, 'm', free)) == 'table' then
      -- A server that is out of memory lets a script continue once it has written. HDEL needs no
      -- memory.
      call('HDEL', key, '')
      call('HSET', key, 'm', free)
    end
    if group then call('SET', group_key, group, 'KEEPTTL') end
    return 1
  end
end

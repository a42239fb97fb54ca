-- A textbook cache. KEYS: the key. ARGV: the command, and for SET the value and its TTL in ms.
if ARGV[1] == 'SET' then return redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return redis.call(ARGV[1], KEYS[1])

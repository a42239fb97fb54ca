-- Returns a lock as it is stored.
--
-- KEYS: the lock. Reply: the time (µs); the fields of its hash; its group, if its lease is in one.
local fields, main = call('HGETALL', KEYS[1]), call('HGET', KEYS[1], 'm')
local simple = try_read_simple(main)
local group = simple and simple.group ~= '' and call('GET', simple.group) or false
return { now, fields, group }

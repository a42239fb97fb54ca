-- Checks whether leases are in their groups.
--
-- KEYS: the locks. ARGV: for how many seconds each key must be kept at least, then for each its
-- claim and its group. Reply: one digit for each: 1: it is; 0: it is not, and the client renews that
-- lease on its own.
local least, replies = now_secs + ARGV[1], {}
for i, key in ipairs(KEYS) do
  local simple = try_read_simple(redis.pcall('HGET', key, 'm'))
  local is_member = simple and simple.claim == ARGV[i * 2] and simple.group == ARGV[i * 2 + 1]
  replies[i] = is_member and simple.kept >= least and '1' or '0'
end
return table.concat(replies)

-- Checks whether leases are in their groups. KEYS: the locks. ARGV: for how many seconds each key
-- must be kept at least, then for each what its record has from the 29th byte on. Returns a 1 for
-- each, or a 0: the client then renews that lease on its own.
local pcall, find = redis.pcall, string.find
local least, answers = fmt('%010.0f', time[1] + ARGV[1]), {}
for i = 1, #KEYS do
  local main = pcall('HGET', KEYS[i], 'm')
  local there = type(main) == 'string' and sub(main, 1, 2) == FORMAT .. 'B' and find(main, ARGV[i + 1], 29, true) == 29
  answers[i] = there and sub(main, 19, 28) >= least and '1' or '0'
end
return table.concat(answers)

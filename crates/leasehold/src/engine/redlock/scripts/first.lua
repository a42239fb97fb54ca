-- What is on record: the highest token of those who are gone or forgotten, the highest that was given back, our own claim; and whether nobody
-- else's is there. Most locks are free: what a script does then stands before the functions, whose making takes longer than the rest.
local all = call('HGETALL', KEYS[1])
local gone, given, found, alone = floor, ZERO, nil, frozen == 0
for i = 1, #all, 2 do
  local field = all[i]
  if field == 't' then
    if all[i + 1] > gone then gone = all[i + 1] end
  elseif field == 'r' then
    given = all[i + 1]
  elseif field == ARGV[1] then
    found = all[i + 1]
  else
    alone = false
  end
end

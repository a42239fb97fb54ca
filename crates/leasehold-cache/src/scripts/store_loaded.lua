-- ARGV: lease, generation, and the load. Reply: 0 if it was stored, or why not: 1: invalidated; 2:
-- overtaken; 3: older; 4: the row is expected to exist.
if entry.lease ~= ARGV[3] then
  if entry.generation == tonumber(ARGV[4]) and entry.mark == NONE then return 2 end
  return 1
end
entry.lease, entry.lease_until = NONE, 0
local refused
if ARGV[7] ~= '' and ARGV[7] < entry.version then
  refused = 3
elseif ARGV[5] == 'N' and now < entry.row_until then
  refused = 4
else
  fill(5)
end
save()
return refused or 0

-- ARGV: lease, generation, and the load. Returns 0 if it was stored, or why not: 1 invalidated, 2
-- overtaken, 3 older, 4 absent.
if lease ~= ARGV[3] then
  if generation == ARGV[4] and mark == NOBODY then return 2 end
  return 1
end
lease, lease_until = NOBODY, ZERO
if ARGV[7] ~= '' and ARGV[7] < version then
  save()
  return 3
end
if ARGV[5] == 'N' and clock < row_until then
  save()
  return 4
end
fill(5)
save()
return 0

-- ARGV: lease, and what those who wait are told.
if lease == ARGV[3] then
  lease, lease_until = NOBODY, ZERO
  save(ARGV[4])
end
return 0

-- ARGV: lease, and the error for waiting readers. Reply: 0.
if entry.lease == ARGV[3] then
  entry.lease, entry.lease_until = NONE, 0
  save(ARGV[4])
end
return 0

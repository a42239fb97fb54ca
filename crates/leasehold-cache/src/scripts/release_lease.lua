-- ARGV: lease, and the error for waiting readers.
if lease == ARGV[3] then
  lease, lease_until = NOBODY, ZERO
  save(ARGV[4])
end
return 0

-- Puts a claim out and raises the token. KEYS: the lock. ARGV: claim, -, retention, -, reason.
open(KEYS[1], call('HGET', KEYS[1], 'm'))
settle()
local rec = get(ARGV[1])
last = last >= now and last + 1 or now
local fence = last
if rec then
  tell(rec, 'X' .. ARGV[1] .. ARGV[5])
  remove(ARGV[1], rec)
  settle()
end
close()
return { fence, rec, now }

-- Nobody is there, and the guess is higher than all that is known: what the whole script does then, in fewer words, before the functions,
-- whose making takes longer than the rest. KEYS: the lock. ARGV: claim, attempt, retention, guess, party.
local text = call('GET', KEYS[1])
if frozen == 0 and (not text or #text == 48) then
  local guess, head = ARGV[4], text or ZERO .. ZERO .. NONE
  if guess > sub(head, 1, 16) and guess > floor then
    local ends = (guess > clock and guess - now or 0) + sub(ARGV[5], 2, 13)
    call('SET', KEYS[1], head .. ARGV[1] .. ARGV[2] .. guess .. clock .. fmt('%04d', #ARGV[5]) .. ARGV[5],
      'EX', math.ceil(ends / 1000000) + ARGV[3])
    return 1
  end
end

-- The common case: no claim is here, and the guess, if there is one, is higher than all known
-- tokens. This does the same as the whole script, in fewer steps. It comes before the functions,
-- which take longer to create than the rest to run. KEYS: the lock. ARGV: claim, attempt,
-- retention, guess, contender.
local text = check(call('GET', KEYS[1]))
if frozen == 0 and (not text or #text == 49) then
  local guess, head, last = ARGV[4], text or FORMAT .. ZERO .. ZERO .. NONE, floor
  if sub(head, 2, 17) > last then last = sub(head, 2, 17) end
  if guess > last or guess == ZERO then
    local ends = sub(ARGV[5], 2, 13)
    if guess > clock then
      ends = ends + guess - now
    elseif sub(head, 2, 17) > clock then
      ends = ends + sub(head, 2, 17) - now
    end
    call('SET', KEYS[1], head .. ARGV[1] .. ARGV[2] .. guess .. clock .. fmt('%04d', #ARGV[5]) .. ARGV[5],
      'EX', math.ceil(ends / 1000000) + ARGV[3])
    if guess > last then return 1 end
    return 'Y' .. last .. clock .. ZERO .. ZERO
  end
end

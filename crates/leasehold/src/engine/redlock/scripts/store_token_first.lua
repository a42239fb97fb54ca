-- The common case, as in acquire_first.lua: only the caller's claim is here, live and without a
-- token, and the token is higher than all known ones. KEYS: the lock. ARGV: claim, attempt,
-- retention, token, owner.
local text, token = check(call('GET', KEYS[1])), ARGV[4]
if frozen == 0 and text and sub(text, 50, 97) == ARGV[1] .. ARGV[2] .. ZERO and #text == 117 + sub(text, 114, 117)
  and token > sub(text, 2, 17) and token > floor and sub(text, 98, 113) + sub(text, 119, 130) > now then
  local ends = sub(text, 119, 130)
  if token > clock then ends = ends + token - now end
  call('SET', KEYS[1], sub(text, 1, 81) .. token .. clock .. sub(text, 114), 'EX', math.ceil(ends / 1000000) + ARGV[3])
  return 'S'
end

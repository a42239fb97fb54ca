-- The common case, as in acquire_first.lua: only our own claim is here, live and without a token, and
-- the token is higher than all known ones. KEYS: the lock. ARGV: claim, attempt, retention, token,
-- owner.
local text, token = call('GET', KEYS[1]), ARGV[4]
if frozen == 0 and text and sub(text, 49, 96) == ARGV[1] .. ARGV[2] .. ZERO and #text == 116 + sub(text, 113, 116)
  and token > sub(text, 1, 16) and token > floor and sub(text, 97, 112) + sub(text, 118, 129) > now then
  local ends = sub(text, 118, 129)
  if token > clock then ends = ends + token - now end
  call('SET', KEYS[1], sub(text, 1, 80) .. token .. clock .. sub(text, 113), 'EX', math.ceil(ends / 1000000) + ARGV[3])
  return 'S'
end

-- Most reads end here: there is a fresh value, no client writes, it is too early to reload it, and
-- the clock was not set back.
do
  local found = call('HMGET', KEYS[1], 'm', 'v')
  local m = found[1]
  if m and sub(m, 1, 1) == FORMAT and sub(m, 170, 170) ~= '-' and sub(m, 2, 17) == sub(m, 171, 186)
    and sub(m, 114, 129) == '0000000000000000' and sub(m, 235, 250) <= clock then
    local left = num(sub(m, 187, 202)) - num(clock)
    if left > 0 and num(sub(m, 203, 218)) * num(ARGV[7]) < left * 1000 then
      return { 1, sub(m, 170, 170), found[2] or '' }
    end
  end
end

-- Most reads end here: there is a fresh value, no client writes, it is too early to reload it, and
-- the clock was not set back.
do
  local found = call('HMGET', KEYS[1], 'm', 'v')
  local m = found[1]
  if m and sub(m, 169, 169) ~= '-' and sub(m, 1, 16) == sub(m, 170, 185) and sub(m, 113, 128) == '0000000000000000'
    and sub(m, 234, 249) <= clock then
    local left = num(sub(m, 186, 201)) - num(clock)
    if left > 0 and num(sub(m, 202, 217)) * num(ARGV[7]) < left * 1000 then
      return { 1, sub(m, 169, 169), found[2] or '' }
    end
  end
end

-- Extends leases. KEYS: the locks. ARGV: -, -, retention, longest TTL (s), and the claims. Answers with a 1 or a 0 for each.
local answers, rich = {}, {}
for i = 1, #ARGV - 4 - extra do
  local main, answer = call('HGET', KEYS[i], 'm'), '0'
  local kind = main and byte(main)
  if kind == 82 then
    rich[#rich + 1] = { i, main }
  elseif kind == 72 and sub(main, 44, 59) == ARGV[i + 4] and sub(main, 28, 43) + sub(main, 61, 76) > now then
    local touched = sub(main, 18, 27)
    if time[1] - touched + ARGV[4] > ARGV[3] / 2 then
      touched = time[1]
      call('EXPIRE', KEYS[i], ARGV[4] + ARGV[3])
    end
    call('HSET', KEYS[i], 'm', sub(main, 1, 17) .. touched .. clock .. sub(main, 44))
    answer = '1'
  end
  answers[i] = answer
end
if #rich == 0 then return table.concat(answers) end

local rec = string.rep('0', 80) .. contender
open(key, main)
settle(claim)
local answer = known(claim)
if not answer then
  local token, other = owned(owner_of(rec), mode_of(rec), n_of(rec), limit_of(rec))
  if mode_of(rec) == 'P' and permits > 0 and limit ~= limit_of(rec) then
    answer = { 2, 'limit', limit }
  elseif other and not token then
    answer = { 2, mode_of(other), n_of(other), limit_of(other) }
  elseif is_full() then
    answer = { 3 }
  else
    if not token and waiters == 0 then token = entry(rec) end
    if token then
      present(rec, 1)
      grant(claim, rec, token)
      answer = token
    elseif ARGV[2] == '0' then
      answer = { 0, recheck(), cooling() }
    else
      present(rec, 1)
      append(queue, claim, ZERO .. clock .. next_place() .. NONE .. NONE .. contender)
      lasts(now + ttl_of(rec))
      answer = { 1, waiters, waiters == 0 and recheck() or -1, place, cooling() }
      waiters = waiters + 1
    end
  end
end
close()
return answer

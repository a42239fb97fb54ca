open(KEYS[1], main)
settle(id)
local reply = known(id)
if not reply then
  reply = { 'busy', recheck(), cool_down_left() }
  -- The claim may have been force released while no message reached its client.
  local list, at = call('HGET', KEYS[1], 'x') or '', 1
  while at <= #list do
    local released
    released, at = read_released(list, at)
    if released.claim == id and released.report_until > now then reply = { 'force-released' } end
  end
end
close()
return reply

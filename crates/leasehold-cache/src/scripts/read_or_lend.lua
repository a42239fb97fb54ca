-- ARGV: lease, lease for, keep for, stale for, early.
local requested = ARGV[3]
if generation == ZERO then bump() end
local free = lease == NOBODY or lease_until <= clock or lease == requested
local function lend()
  lease, lease_until = requested, plus(clock, ARGV[4])
  keep_to(plus(clock, ARGV[5]))
  -- A reader that takes over from another sends no notification: the waiting readers look when the
  -- first lease expires.
  had_lease = NOBODY
  save()
end
local data = kind == 'V' and call('HGET', key, 'v') or ''
if mark == NOBODY and kind ~= '-' and of == generation and clock < fresh then
  if not free or num(cost) * num(ARGV[7]) < (num(fresh) - now) * 1000 then return { 1, kind, data } end
  lend()
  return { 2, kind, data, generation }
end
local old = kind
if kind == '-' or num(ARGV[6]) == 0 or clock >= plus(fresh, ARGV[6]) then old, data = '-', '' end
if mark ~= NOBODY then
  if old ~= '-' then return { 3, old, data } end
  return { 6 }
end
if not free then
  if old ~= '-' then return { 3, old, data } end
  local inboxes = call('HGET', key, 'w') or ''
  local there = false
  for at = 1, #inboxes, 16 do
    if sub(inboxes, at, at + 15) == ARGV[1] then there = true end
  end
  if not there then call('HSET', key, 'w', inboxes .. ARGV[1]) end
  return { 5, lease, num(lease_until) - now }
end
lend()
return { 4, old, data, generation }

-- ARGV: lease, lease for, keep for, stale for, early. Reply: one of
--   { 1, kind, data }: a fresh value
--   { 2, kind, data, generation }: a fresh value, and the lease to load it anew early
--   { 3, kind, data }: a stale value
--   { 4, kind, data, generation }: the lease to load, and a stale value if `kind` is not `-`
--   { 5, lease, time (µs) }: another reader loads, for this time at most
--   { 6 }: a client writes
local requested, lease_for, keep_for, stale_for, early = unpack(ARGV, 3)
if entry.generation == 0 then start_generation() end
local is_free = entry.lease == NONE or entry.lease_until <= now or entry.lease == requested
local function lend()
  entry.lease, entry.lease_until = requested, now + lease_for
  keep_to(now + keep_for)
  -- A reader that takes over from another sends no notification: the waiting readers look when the
  -- first lease expires.
  had_lease = NONE
  save()
end
local data = entry.kind == 'V' and call('HGET', key, 'v') or ''
if entry.mark == NONE and entry.kind ~= '-' and entry.of == entry.generation and now < entry.fresh then
  if not is_free or entry.cost * early < (entry.fresh - now) * 1000 then return { 1, entry.kind, data } end
  lend()
  return { 2, entry.kind, data, entry.generation }
end
local old = entry.kind
if old == '-' or tonumber(stale_for) == 0 or now >= entry.fresh + stale_for then old, data = '-', '' end
if entry.mark ~= NONE then
  if old ~= '-' then return { 3, old, data } end
  return { 6 }
end
if not is_free then
  if old ~= '-' then return { 3, old, data } end
  local inboxes, at, is_listed = call('HGET', key, 'w') or '', 1, false
  while at <= #inboxes do
    local inbox
    inbox, at = read_inbox(inboxes, at)
    is_listed = is_listed or inbox.number == ARGV[1]
  end
  if not is_listed then call('HSET', key, 'w', inboxes .. write_inbox({ number = ARGV[1] })) end
  return { 5, entry.lease, entry.lease_until - now }
end
lend()
return { 4, old, data, entry.generation }

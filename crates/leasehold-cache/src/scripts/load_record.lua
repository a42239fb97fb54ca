-- One key's record, as in src/logic.rs.
-- KEYS: the key, a hash. `m` is the format number and everything but the value, `v` the value, `w` the inboxes of waiting
-- readers.
-- ARGV: this client's inbox, the prefix of channels, then the operation's own arguments. Ids have 32 digits,
-- times 16, tokens and versions 20, so that they compare as texts like numbers.
local NOBODY, ZERO = '00000000000000000000000000000000', '0000000000000000'
local key, now = KEYS[1], num(clock)
local m = call('HGET', key, 'm')
local generation, keep, lease, lease_until, mark, mark_until = ZERO, ZERO, NOBODY, ZERO, NOBODY, ZERO
local token, version, kind, of, fresh, cost, row_until = '0000' .. ZERO, '0000' .. ZERO, '-', ZERO, ZERO, ZERO, ZERO
-- When it was written, by the clock of the server that wrote it.
local written = ZERO
if m then
  if sub(m, 1, 1) ~= FORMAT then error('unknown format ' .. (string.match(m, '^%d') or '?')) end
  m = sub(m, 2)
  generation, keep, lease, lease_until = sub(m, 1, 16), sub(m, 17, 32), sub(m, 33, 64), sub(m, 65, 80)
  mark, mark_until, token, version = sub(m, 81, 112), sub(m, 113, 128), sub(m, 129, 148), sub(m, 149, 168)
  kind, of, fresh, cost = sub(m, 169, 169), sub(m, 170, 185), sub(m, 186, 201), sub(m, 202, 217)
  row_until, written = sub(m, 218, 233), sub(m, 234, 249)
end
local had_lease, had_keep = lease, keep
local function plus(time, micros)
  return fmt('%016.0f', num(time) + num(micros))
end
local function bump()
  generation = generation < clock and clock or plus(generation, 1)
  lease, lease_until = NOBODY, ZERO
end
local function keep_to(time)
  if time > keep then keep = time end
end
local function outdate()
  if fresh > clock then fresh = clock end
end
local function age(stale_for)
  outdate()
  if kind ~= '-' and num(stale_for) == 0 then
    kind, of, fresh, cost = '-', ZERO, ZERO, ZERO
    call('HDEL', key, 'v')
  end
end
-- A load's arguments: data kind, data, version or '', cost, fresh for, stale for.
local function fill(at)
  if ARGV[at + 2] > version then version = ARGV[at + 2] end
  kind, of, fresh, cost = ARGV[at], generation, plus(clock, ARGV[at + 4]), ARGV[at + 3]
  keep_to(plus(fresh, ARGV[at + 5]))
  if kind == 'V' then call('HSET', key, 'v', ARGV[at + 1]) else call('HDEL', key, 'v') end
end
-- Stores the record, and notifies waiting readers when the lease has ended; `failure` is the error
-- of its load, if it failed.
local function save(failure)
  call('HSET', key, 'm', FORMAT .. generation .. keep .. lease .. lease_until .. mark .. mark_until .. token .. version
    .. kind .. of .. fresh .. cost .. row_until .. clock)
  if keep > had_keep then call('PEXPIRE', key, math.ceil((num(keep) - now) / 1000)) end
  if had_lease ~= NOBODY and lease == NOBODY then
    local inboxes = call('HGET', key, 'w')
    if inboxes then
      call('HDEL', key, 'w')
      for at = 1, #inboxes, 16 do
        call('PUBLISH', ARGV[2] .. sub(inboxes, at, at + 15), FORMAT .. had_lease .. fmt('%06d', #key) .. key .. (failure or ''))
      end
    end
  end
end
-- The clock was set back, or a server whose clock is behind took over: the time left when the
-- record was written counts from now. Otherwise times would end later by that difference, and a
-- dead loader would block all readers for that long. Generations stay.
if written > clock then
  local ahead = num(written) - now
  local function back(until_then)
    return fmt('%016.0f', math.max(num(until_then) - ahead, 0))
  end
  keep, lease_until, mark_until = back(keep), back(lease_until), back(mark_until)
  fresh, row_until = back(fresh), back(row_until)
  had_keep = ZERO
  save()
end
if mark ~= NOBODY and mark_until <= clock then
  mark, mark_until = NOBODY, ZERO
  bump()
  save()
end

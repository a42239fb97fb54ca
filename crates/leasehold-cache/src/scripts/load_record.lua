-- One key's entry, as in src/logic.rs. The other scripts follow this one.
--
-- KEYS: the key, a hash: `m` is an `entry`, `v` the value, `w` the inboxes of waiting readers, one
-- `inbox` after another.
-- ARGV: this client's inbox, the prefix of channels, then the operation's own arguments. An id has
-- 16 bytes, a time is in µs. Tokens and versions may be above 2^53, so they have 20 digits, and
-- compare as texts like numbers.
local NO_NUMBER = string.rep('0', 20)
local key = KEYS[1]
local main = call('HGET', key, 'm')
-- `kind` is `V` for a value, `N` for a row that does not exist, `-` for nothing. `of` is the
-- generation of the value. `written` is by the clock of the server that wrote it.
local entry = {
  generation = 0, keep = 0, lease = NONE, lease_until = 0, mark = NONE, mark_until = 0, token = NO_NUMBER,
  version = NO_NUMBER, kind = '-', of = 0, fresh = 0, cost = 0, row_until = 0, written = 0,
}
if main then entry = read_entry(main) or refuse(main) end
local had_lease, had_keep = entry.lease, entry.keep
local function start_generation()
  entry.generation = math.max(entry.generation + 1, now)
  entry.lease, entry.lease_until = NONE, 0
end
local function keep_to(time)
  entry.keep = math.max(entry.keep, time)
end
local function outdate()
  entry.fresh = math.min(entry.fresh, now)
end
local function age(stale_for)
  outdate()
  if entry.kind ~= '-' and tonumber(stale_for) == 0 then
    entry.kind, entry.of, entry.fresh, entry.cost = '-', 0, 0, 0
    call('HDEL', key, 'v')
  end
end
-- A load's arguments, from this one on: data kind, data, version or '', cost, fresh for, stale for.
local function fill(at)
  local kind, data, version, cost, fresh_for, stale_for = unpack(ARGV, at, at + 5)
  if version > entry.version then entry.version = version end
  entry.kind, entry.of, entry.fresh, entry.cost = kind, entry.generation, now + fresh_for, tonumber(cost)
  keep_to(entry.fresh + stale_for)
  if kind == 'V' then call('HSET', key, 'v', data) else call('HDEL', key, 'v') end
end
-- Stores the entry, and notifies waiting readers when the lease has ended; `failure` is the error
-- of its load, if it failed.
local function save(failure)
  entry.written = now
  call('HSET', key, 'm', write_entry(entry))
  if entry.keep > had_keep then call('PEXPIRE', key, math.ceil((entry.keep - now) / 1000)) end
  if had_lease == NONE or entry.lease ~= NONE then return end
  local inboxes, at = call('HGET', key, 'w'), 1
  if not inboxes then return end
  call('HDEL', key, 'w')
  local message = write_lease_ended({ lease = had_lease, key = key, failure = failure or '' })
  while at <= #inboxes do
    local inbox
    inbox, at = read_inbox(inboxes, at)
    call('PUBLISH', ARGV[2] .. inbox.number, message)
  end
end
-- The clock was set back, or a server whose clock is behind took over: the time left when the
-- entry was written counts from now. Otherwise times would end later by that difference, and a
-- dead loader would block all readers for that long. Generations stay.
if entry.written > now then
  local ahead = entry.written - now
  for _, field in ipairs({ 'keep', 'lease_until', 'mark_until', 'fresh', 'row_until' }) do
    entry[field] = math.max(entry[field] - ahead, 0)
  end
  had_keep = 0
  save()
end
if entry.mark ~= NONE and entry.mark_until <= now then
  entry.mark, entry.mark_until = NONE, 0
  start_generation()
  save()
end

-- One lock, as `logic/table.rs` defines it; "rule N" refers to the rules there. The layouts are in
-- `engine/redis/wire.rs`.
--
-- The lock is one hash. Its field `m` is one of:
--   simple  free, or held by one exclusive claim without waiters
--   queue   any other state; each claim has its own field
-- The field `x` lists the claims that were force released last, as `released`: a heartbeat of such
-- a claim reports it.
--
-- Times are in µs. `since` is when a claim last renewed or sent a heartbeat. It expires a TTL later.
-- No decision compares times of two runs of the server. What another run wrote counts from when the
-- present run first sees it: the server has restarted, a replica was promoted, a slot has moved. The
-- same holds for a time that is ahead of the present clock.

-- The lock that is open: its key, and the fields of `queue`.
local lock
-- Its claims by id, as far as they were read or changed. `false`: there is no such claim.
local claims
-- The ids of the claims to be written and to be removed.
local changed, removed
-- The lists of its claims: the holders by grant, the waiters by arrival. Each has a `first` and a
-- `last`. The `before` of the first claim may name one that has ended.
local held, waiting
-- The waiter that watches for the end of a lease: the first one.
local watcher
-- The longest time until a claim that was changed expires.
local longest
-- Whether the script has written something.
local has_written = false

local function expiry(claim) return claim.since + claim.wants.ttl end

-- Sends a message to a claim's client, if that client subscribes on this very node: what the cluster
-- bus forwards to other nodes does not count. The client of an inherited claim may not know yet
-- that it must subscribe here. It gets the message over the bus, or learns the same by its next
-- heartbeat.
local function notify(claim, message)
  local inbox = claim.wants.inbox
  if claim.inherited == 0 and call('PUBSUB', 'NUMSUB', inbox)[2] == 0 then return false end
  -- A server that refuses writes now (too few replicas, a full disk) fails here, before it
  -- publishes what is not stored. A server that is out of memory lets a script continue once it has
  -- written. HDEL needs no memory.
  if not has_written then
    call('HDEL', lock.key, '')
    has_written = true
  end
  call('PUBLISH', inbox, message)
  return true
end

local function get(id)
  local claim = claims[id]
  if claim == nil then
    local text = call('HGET', lock.key, id)
    claim = text and read_claim(text) or false
    if claim then claim.wants = read_contender(claim.contender) end
    claims[id] = claim
  end
  return claim
end

-- A new claim, in no list.
local function new_claim(contender)
  return { token = 0, since = now, place = 0, inherited = 0, contender = contender, wants = read_contender(contender) }
end

local function append(list, id, claim)
  claim.before, claim.behind = list.last, NONE
  if list.last == NONE then
    list.first = id
  else
    get(list.last).behind = id
    changed[list.last] = true
  end
  list.last = id
  claims[id], changed[id], removed[id] = claim, true, nil
end

local function cut(list, id)
  local claim = get(id)
  local before = list.first == id and NONE or claim.before
  local behind = list.last == id and NONE or claim.behind
  if before == NONE then
    list.first = behind
  else
    get(before).behind = behind
    changed[before] = true
  end
  if behind == NONE then
    list.last = before
  else
    get(behind).before = before
    changed[behind] = true
  end
  claims[id], changed[id], removed[id] = false, nil, true
end

-- A claim now lasts for its whole TTL: the key must outlive it.
local function restart(claim)
  claim.since = now
  longest = math.max(longest, claim.wants.ttl)
end

-- Opens a lock that is held by one claim without waiters.
local function open_simple(simple)
  if simple.claim == NONE then return end
  if simple.group ~= '' then
    local text = call('GET', simple.group)
    local group = text and (read_group(text) or refuse(text))
    -- Without its group the lease has expired.
    if not group then return end
    -- The lease leaves its group. The group's owner finds one lease less there.
    simple.since, simple.run, group.count = group.since, group.run, math.max(group.count - 1, 0)
    call('SET', simple.group, write_group(group), 'KEEPTTL')
  end
  local claim = new_claim(simple.contender)
  claim.token, claim.place, claim.since = simple.token, simple.token, simple.since
  if simple.run ~= RUN then claim.inherited = 1 end
  if claim.inherited == 1 or claim.since > now then claim.since = now end
  if expiry(claim) <= now then return end
  longest = expiry(claim) - now
  append(held, simple.claim, claim)
  lock.place, lock.exclusive, lock.holders, lock.soonest = simple.token, 1, 1, expiry(claim)
end

-- Counts claims from now if another run wrote them, or if their time is ahead of the clock.
local function inherit(is_from_another_run)
  for _, list in ipairs({ held, waiting }) do
    local id = list.first
    while id ~= NONE do
      local claim = get(id)
      if is_from_another_run or claim.since > now then
        if is_from_another_run then claim.inherited = 1 end
        restart(claim)
        changed[id] = true
      end
      id = list.last == id and NONE or claim.behind
    end
  end
  lock.soonest = 0
end

-- Opens a lock: `main` is its field `m`.
local function open(key, main)
  claims, changed, removed, longest = {}, {}, {}, 0
  held, waiting, watcher = { first = NONE, last = NONE }, { first = NONE, last = NONE }, NONE
  local queue = main and read_queue(main)
  if queue then
    lock = queue
    lock.key = key
    held = { first = lock.first_holder, last = lock.last_holder }
    waiting, watcher = { first = lock.first_waiter, last = lock.last_waiter }, lock.first_waiter
    local is_from_another_run = lock.run ~= RUN
    if is_from_another_run or lock.written > now then inherit(is_from_another_run) end
    return
  end
  lock = {
    key = key, token = 0, kept = 0, place = 0, soonest = 0, exclusive = 0, shared = 0, holders = 0, waiters = 0,
    semaphore_claims = 0, permits = 0, limit = 0,
  }
  local simple = main and read_simple(main)
  if simple then
    lock.token, lock.kept = simple.token, simple.kept
    open_simple(simple)
  elseif main then
    error('unknown state of a lock')
  end
end

-- Writes the lock back.
local function close()
  local fields, gone = {}, {}
  for id in pairs(changed) do
    fields[#fields + 1] = id
    fields[#fields + 1] = write_claim(claims[id])
  end
  for id in pairs(removed) do gone[#gone + 1] = id end
  local keep_until = later_expiry(lock.kept, longest)
  local must_expire = keep_until ~= lock.kept
  lock.kept = keep_until
  fields[#fields + 1] = 'm'
  if lock.holders == 0 and lock.waiters == 0 then
    fields[#fields + 1] = write_simple({
      token = lock.token, kept = keep_until, since = 0, claim = NONE, run = RUN, group = '', contender = '',
    })
  else
    lock.first_holder, lock.last_holder = held.first, held.last
    lock.first_waiter, lock.last_waiter = waiting.first, waiting.last
    lock.written, lock.run = now, RUN
    fields[#fields + 1] = write_queue(lock)
  end
  -- HDEL comes first: where it is not permitted, the script fails before it has written anything.
  for from = 1, #gone, 1000 do call('HDEL', lock.key, unpack(gone, from, math.min(from + 999, #gone))) end
  for from = 1, #fields, 1000 do call('HSET', lock.key, unpack(fields, from, math.min(from + 999, #fields))) end
  if must_expire then call('EXPIRE', lock.key, keep_until - now_secs) end
end

-- Calls `act` for each holder, in the order of their grants, until it returns something.
local function each_holder(act)
  local id = held.first
  while id ~= NONE do
    local claim = get(id)
    local first, second = act(id, claim)
    if first ~= nil then return first, second end
    id = claim.behind
  end
end

-- Counts the permits in use. Of each owner only the largest hold counts.
local function count_permits()
  local largest = {}
  lock.permits = 0
  each_holder(function(_, claim)
    local wants = claim.wants
    if wants.mode ~= 'P' then return end
    local counted = wants.owner ~= NONE and largest[wants.owner] or 0
    if wants.permits > counted then
      lock.permits = lock.permits + wants.permits - counted
      if wants.owner ~= NONE then largest[wants.owner] = wants.permits end
    end
  end)
end

-- A claim arrives (1) or leaves (-1), as holder or as waiter. The semaphore's limit is that of the
-- claims that are there.
local function count_claim(wants, by)
  if wants.mode ~= 'P' then return end
  lock.semaphore_claims = lock.semaphore_claims + by
  lock.limit = lock.semaphore_claims == 0 and 0 or wants.limit
end

-- A holder arrives or leaves.
local function count_holder(wants, by)
  lock.holders = lock.holders + by
  if wants.mode == 'E' then
    lock.exclusive = lock.exclusive + by
  elseif wants.mode == 'S' then
    lock.shared = lock.shared + by
  elseif wants.owner == NONE then
    lock.permits = lock.permits + by * wants.permits
  else
    count_permits()
  end
end

local function remove(id, claim)
  count_claim(claim.wants, -1)
  if claim.token > 0 then
    cut(held, id)
    count_holder(claim.wants, -1)
  else
    cut(waiting, id)
    lock.waiters = lock.waiters - 1
  end
end

-- Whether a hold includes what is wanted.
local function covers(has, wants)
  return has.mode == 'E' or has.mode == 'S' and wants.mode == 'S'
    or has.mode == 'P' and wants.mode == 'P' and wants.permits <= has.permits and wants.limit == has.limit
end

-- What an owner holds: the token of a hold that covers what is wanted, or else its first hold. In
-- strict mode, only holds that were renewed in this run count. The server may have lost the release
-- of any other, and who held the lock after it.
local function owned(wants)
  if wants.owner == NONE or lock.holders == 0 then return end
  local first
  local token = each_holder(function(_, claim)
    if claim.wants.owner ~= wants.owner or strict and claim.inherited == 1
      or cool_down_until > 0 and claim.since < run_start then return end
    if covers(claim.wants, wants) then return claim.token end
    first = first or claim.wants
  end)
  return token, first
end

local function fits(wants)
  if wants.mode == 'E' then return lock.holders == 0 end
  if wants.mode == 'S' then return lock.holders == lock.shared end
  return lock.exclusive == 0 and lock.shared == 0 and lock.permits + wants.permits <= wants.limit
end

-- The token that a contender would get if it were granted now; nil if it does not fit. Rules 5 and 6.
local function admit(wants)
  local token, other = owned(wants)
  if token then return token end
  if other or cool_down_until > 0 or not fits(wants) then return nil end
  return math.max(lock.token + 1, now)
end

local function next_place()
  lock.place = math.max(lock.place + 1, now)
  return lock.place
end

-- Grants a claim that is in no list.
local function grant(id, claim, token)
  lock.token = math.max(lock.token, token)
  claim.token, claim.place, claim.inherited = token, next_place(), 0
  restart(claim)
  if lock.holders == 0 or expiry(claim) < lock.soonest then lock.soonest = expiry(claim) end
  append(held, id, claim)
  count_holder(claim.wants, 1)
end

-- Removes holders whose lease has ended. Rule 1.
local function expire()
  if lock.holders == 0 or lock.soonest > 0 and now < lock.soonest then return end
  local over, soonest = {}, nil
  each_holder(function(id, claim)
    local ends = expiry(claim)
    if ends <= now then
      over[#over + 1] = id
    elseif not soonest or ends < soonest then
      soonest = ends
    end
  end)
  for _, id in ipairs(over) do remove(id, get(id)) end
  lock.soonest = soonest or 0
end

-- Removes expired claims and serves the queue: rules 1 to 3. Notifies each waiter that is granted,
-- except `me`, which gets its grant in the reply. Skips a waiter whose inbox has no subscriber.
local function settle(me)
  expire()
  while waiting.first ~= NONE do
    local id = waiting.first
    local claim = get(id)
    local token = expiry(claim) > now and admit(claim.wants)
    if expiry(claim) <= now then
      remove(id, claim)
    elseif not token then
      -- The claim has just become the first in the queue. An earlier reply may have put off its
      -- next heartbeat until after the end of a lease.
      if id ~= watcher and id ~= me and lock.holders > 0 and (lock.soonest - now) * 3 < claim.wants.ttl then
        notify(claim, write_recheck({ claim = id }))
      end
      watcher = id
      return
    elseif id == me or notify(claim, write_granted({ claim = id, token = token, place = claim.place })) then
      cut(waiting, id)
      lock.waiters = lock.waiters - 1
      grant(id, claim, token)
    else
      remove(id, claim)
    end
  end
end

-- In how many µs the lock may become free without a release; -1: it has no holder.
local function recheck()
  if cool_down_until > 0 then return cool_down_until - now end
  return lock.holders == 0 and -1 or lock.soonest - now
end

-- How long the cool-down of strict mode still lasts while no holder is known; -1: no cool-down.
local function cool_down_left()
  return cool_down_until > 0 and lock.holders == 0 and cool_down_until - now or -1
end

-- The reply to a waiter.
local function queued(ahead, place)
  return { 'queued', ahead, ahead == 0 and recheck() or -1, place, cool_down_left() }
end

-- The reply to a claim that is there already, which is extended. Rule 4.
local function known(id)
  local claim = get(id)
  if not claim then return end
  claim.inherited = 0
  restart(claim)
  changed[id] = true
  if claim.token > 0 then
    if lock.holders == 1 then lock.soonest = expiry(claim) end
    return claim.token
  end
  -- Counts 100 claims at most: beyond that the exact position does not matter.
  local ahead, at = 0, waiting.first
  while at ~= id and ahead < 100 do
    ahead, at = ahead + 1, get(at).behind
  end
  return queued(ahead, claim.place)
end

-- One lock, as `logic/table.rs` defines it; "rule N" below refers to the rules there.
--
-- The lock is one hash. Its field `m` begins with the format number of all fields, and goes on with
-- one of:
--   F token kept                            free
--   H token kept since claim contender run  one exclusive holder, no waiters
--   B token kept size claim key contender   as H, but `since` and `run` are in the group `key`
--                                           (`size` bytes long) of leases that are renewed together
--   R token kept, the counters and list ends that are declared below, written, run
--                                           any other state; each claim has its own field:
--                                           token since place before behind contender
--
-- The parts:
-- - Times are in µs, with 16 digits, as a token has. `kept` is the second (10 digits) in which the
--   key expires.
-- - `since` is when the claim last renewed or sent a heartbeat. It expires a TTL later.
-- - `run` (8 digits) is the run of the server that wrote the entry. No decision compares times of
--   two runs. What another run wrote counts from when the present run first sees it: the server has
--   restarted, a replica was promoted, a slot has moved. The same holds for a time that is ahead of
--   the present clock.
-- - `place` orders waiters by arrival and holders by grant. `before` and `behind` link the claims
--   of a list. The `before` of the first in a list may name a claim that has ended.
-- - A waiter's token is zero.
-- - A contender describes the claim's client: mode, TTL (12 digits), owner (16 bytes), length of the
--   prefix (3 digits) and number of its inbox (16 digits); for permits, the number wanted and the
--   limit (10 digits each); then process id, host, program and text.
-- - A mode in lower case is inherited: another run wrote the claim, and since then it has neither
--   renewed nor sent a heartbeat.
--
-- The field `x` lists the claims that were force released last: each claim (16 bytes) with the time
-- (16 digits) until which a heartbeat of that claim reports it.
local RETAIN = num(ARGV[3])
local name, kept, longest, cache, dirty, gone
local writing = false
-- `last` and `place` are the last token and place. `alone` and `shared` count exclusive and shared
-- holders, `used` the permits in use. `permits` counts claims that hold or want permits, `limit` is
-- the semaphore's limit. `holders` and `waiters` count claims. No lease ends before `soonest`; zero
-- if that is unknown.
local last, place, alone, shared, used, permits, limit, holders, waiters, soonest
-- `held` and `queue` are lists: first and last claim. `front` is the waiter that watches for the
-- end of a lease: the first in the queue.
local held, queue, front

local function n16(number) return fmt('%016.0f', number) end
local function token_of(rec) return num(sub(rec, 1, 16)) end
local function mode_of(rec) return string.upper(sub(rec, 81, 81)) end
local function is_inherited(rec) return byte(rec, 81) > 96 end
local function ttl_of(rec) return num(sub(rec, 82, 93)) end
local function until_of(rec) return sub(rec, 17, 32) + ttl_of(rec) end
local function owner_of(rec) return sub(rec, 94, 109) end
local function n_of(rec) return mode_of(rec) == 'P' and num(sub(rec, 129, 138)) or 0 end
local function limit_of(rec) return mode_of(rec) == 'P' and num(sub(rec, 139, 148)) or 0 end
local function behind(rec) return sub(rec, 65, 80) end
local function inbox(rec) return sub(name, 1, num(sub(rec, 110, 112))) .. 'i' .. sub(rec, 113, 128) end
-- Sends a message to a claim's client if that client subscribes on this very node: what the cluster
-- bus forwards to other nodes does not count. The client of an inherited claim may not know yet
-- that it must subscribe here. It gets the message over the bus, or learns the same by its next
-- heartbeat.
local function notify(rec, message)
  if not is_inherited(rec) and call('PUBSUB', 'NUMSUB', inbox(rec))[2] == 0 then return false end
  -- A server that refuses writes now (too few replicas, a full disk) fails here, before it
  -- publishes what is not stored. A server that is out of memory lets a script continue once it has
  -- written. HDEL needs no memory.
  if not writing then
    call('HDEL', name, '')
    writing = true
  end
  call('PUBLISH', inbox(rec), message)
  return true
end

local function get(claim)
  local rec = cache[claim]
  if rec == nil then
    rec = call('HGET', name, claim)
    cache[claim] = rec
  end
  return rec
end

local function put(claim, rec)
  cache[claim], dirty[claim], gone[claim] = rec, true, nil
end

-- Appends a claim to a list.
local function append(list, claim, rec)
  if list[2] ~= NONE then
    local other = get(list[2])
    put(list[2], sub(other, 1, 64) .. claim .. sub(other, 81))
  else
    list[1] = claim
  end
  put(claim, sub(rec, 1, 48) .. list[2] .. NONE .. sub(rec, 81))
  list[2] = claim
end

-- Removes a claim from a list.
local function cut(list, claim, rec)
  local before = list[1] == claim and NONE or sub(rec, 49, 64)
  local after = list[2] == claim and NONE or behind(rec)
  if before == NONE then
    list[1] = after
  else
    local other = get(before)
    put(before, sub(other, 1, 64) .. after .. sub(other, 81))
  end
  if after == NONE then
    list[2] = before
  else
    local other = get(after)
    put(after, sub(other, 1, 48) .. before .. sub(other, 65))
  end
  cache[claim], dirty[claim], gone[claim] = false, nil, true
end

-- A claim now expires at `till`: the key must outlive it.
local function lasts(till)
  local left = (till - now) / 1000000
  if left > longest then longest = left end
end

local function hold(claim, since, main, contender, run)
  if run ~= RUN then
    since, contender = clock, string.lower(sub(contender, 1, 1)) .. sub(contender, 2)
  elseif since > clock then
    since = clock
  end
  local till = since + sub(contender, 2, 13)
  if till <= now then return end
  lasts(till)
  append(held, claim, sub(main, 3, 18) .. since .. sub(main, 3, 18) .. NONE .. NONE .. contender)
  place, alone, holders, soonest = last, 1, 1, till
end

-- Counts entries from now if another run wrote them (`foreign`) or their time is ahead of the
-- clock.
local function inherit(foreign)
  for _, list in ipairs({ held, queue }) do
    local claim = list[1]
    while claim ~= NONE do
      local rec = get(claim)
      if foreign or sub(rec, 17, 32) > clock then
        local mode = mode_of(rec)
        if is_inherited(rec) or foreign then mode = string.lower(mode) end
        put(claim, sub(rec, 1, 16) .. clock .. sub(rec, 33, 80) .. mode .. sub(rec, 82))
        lasts(now + ttl_of(rec))
      end
      claim = behind(rec)
    end
  end
  soonest = 0
end

-- Reads a lock.
local function open(of, main)
  name, kept, longest, cache, dirty, gone = of, 0, 0, {}, {}, {}
  last, place, alone, shared, used, permits, limit, holders, waiters, soonest = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
  held, queue, front = { NONE, NONE }, { NONE, NONE }, NONE
  if not check(main) then return end
  last, kept = num(sub(main, 3, 18)), num(sub(main, 19, 28))
  local kind = byte(main, 2)
  if kind == 72 then
    hold(sub(main, 45, 60), sub(main, 29, 44), main, sub(main, 61, -9), sub(main, -8))
  elseif kind == 66 then
    local size = num(sub(main, 29, 44))
    local tie = sub(main, 61, 60 + size)
    local group = check(call('GET', tie))
    if group then
      hold(sub(main, 45, 60), sub(group, 2, 17), main, sub(main, 61 + size), sub(group, 28, 35))
      -- The lease leaves its group. The group's owner finds one lease less there.
      call('SETRANGE', tie, 17, fmt('%010.0f', sub(group, 18, 27) - 1))
    end
  elseif kind == 82 then
    held = { sub(main, 29, 44), sub(main, 45, 60) }
    queue, front = { sub(main, 61, 76), sub(main, 77, 92) }, sub(main, 61, 76)
    place, soonest = num(sub(main, 93, 108)), num(sub(main, 109, 124))
    alone, shared, holders = num(sub(main, 125, 130)), num(sub(main, 131, 136)), num(sub(main, 137, 142))
    waiters, permits = num(sub(main, 143, 148)), num(sub(main, 149, 154))
    used, limit = num(sub(main, 155, 170)), num(sub(main, 171, 180))
    local foreign = sub(main, 197, 204) ~= RUN
    if foreign or sub(main, 181, 196) > clock then inherit(foreign) end
  elseif kind ~= 70 then
    error('unknown state of a lock')
  end
end

-- Writes a lock back.
local function close()
  local fields = {}
  for claim in pairs(dirty) do
    fields[#fields + 1] = claim
    fields[#fields + 1] = cache[claim]
  end
  local out = {}
  for claim in pairs(gone) do out[#out + 1] = claim end
  local most = math.ceil(longest) + RETAIN
  local old = time[1] + longest + RETAIN / 2 > kept
  if old then kept = time[1] + most end
  fields[#fields + 1] = 'm'
  if holders == 0 and waiters == 0 then
    fields[#fields + 1] = fmt(FORMAT .. 'F%016.0f%010.0f', last, kept)
  else
    fields[#fields + 1] = fmt(FORMAT .. 'R%016.0f%010.0f', last, kept) .. held[1] .. held[2] .. queue[1] .. queue[2]
      .. fmt('%016.0f%016.0f%06d%06d%06d%06d%06d%016.0f%010.0f', place, soonest, alone, shared, holders, waiters, permits, used, limit)
      .. clock .. RUN
  end
  -- HDEL comes first: where it is not permitted, the script fails before it has written anything.
  for from = 1, #out, 1000 do call('HDEL', name, unpack(out, from, math.min(from + 999, #out))) end
  for from = 1, #fields, 1000 do call('HSET', name, unpack(fields, from, math.min(from + 999, #fields))) end
  if old then call('EXPIRE', name, most) end
end

-- Calls `act` for each holder, in the order of their grants, until it returns something.
local function each_held(act)
  local claim = held[1]
  while claim ~= NONE do
    local rec = get(claim)
    local answer, more = act(claim, rec)
    if answer ~= nil then return answer, more end
    claim = behind(rec)
  end
end

-- Counts are stored with six digits.
local function is_full() return holders + waiters >= 999999 end

-- Counts the permits in use. Of each owner only the largest hold counts.
local function count_used()
  local most = {}
  used = 0
  each_held(function(_, rec)
    if mode_of(rec) ~= 'P' then return end
    local owner, n = owner_of(rec), n_of(rec)
    if owner == NONE then
      used = used + n
    elseif n > (most[owner] or 0) then
      used = used + n - (most[owner] or 0)
      most[owner] = n
    end
  end)
end

-- A claim arrives or leaves, as holder or as waiter. The semaphore's limit is that of the claims
-- that are there.
local function present(rec, by)
  if mode_of(rec) ~= 'P' then return end
  permits = permits + by
  limit = permits == 0 and 0 or limit_of(rec)
end

-- A holder arrives or leaves.
local function counted(rec, by)
  holders = holders + by
  local mode = mode_of(rec)
  if mode == 'E' then
    alone = alone + by
  elseif mode == 'S' then
    shared = shared + by
  elseif owner_of(rec) == NONE then
    used = used + by * n_of(rec)
  else
    count_used()
  end
end

-- Removes a claim, holder or waiter.
local function remove(claim, rec)
  present(rec, -1)
  if token_of(rec) > 0 then
    cut(held, claim, rec)
    counted(rec, -1)
  else
    cut(queue, claim, rec)
    waiters = waiters - 1
  end
end

-- Whether holder `rec` already has what is wanted.
local function covers(rec, mode, n, most)
  local has = mode_of(rec)
  return has == 'E' or has == 'S' and mode == 'S' or has == 'P' and mode == 'P' and n <= n_of(rec) and most == limit_of(rec)
end

-- What an owner holds: the token of a hold that covers what is wanted, or else its first hold. In
-- strict mode, only holds that were renewed in this run count. The server may have lost the release
-- of any other, and who held the lock after it.
local function owned(owner, mode, n, most)
  if owner == NONE or holders == 0 then return end
  local first
  local token = each_held(function(_, rec)
    if owner_of(rec) ~= owner or strict and is_inherited(rec) or frozen > 0 and num(sub(rec, 17, 32)) < born then return end
    if covers(rec, mode, n, most) then return token_of(rec) end
    first = first or rec
  end)
  return token, first
end

local function fits(mode, n, most)
  if mode == 'E' then return holders == 0 end
  if mode == 'S' then return holders == shared end
  return alone == 0 and shared == 0 and used + n <= most
end

-- The token that a contender would get if it were granted now; nil if it does not fit. Rules 5 and 6.
local function entry(rec)
  local mode, n, most = mode_of(rec), n_of(rec), limit_of(rec)
  local token, other = owned(owner_of(rec), mode, n, most)
  if token then return token end
  if other or frozen > 0 or not fits(mode, n, most) then return nil end
  return last >= now and last + 1 or now
end

local function next_place()
  place = place >= now and place + 1 or now
  return n16(place)
end

-- Grants a claim that is in no list. Of `rec` only the contender is used.
local function grant(claim, rec, token)
  if token > last then last = token end
  local till = now + ttl_of(rec)
  if holders == 0 or till < soonest then soonest = till end
  lasts(till)
  append(held, claim, n16(token) .. clock .. next_place() .. NONE .. NONE .. mode_of(rec) .. sub(rec, 82))
  counted(rec, 1)
end

-- Removes holders whose lease has ended. Rule 1.
local function expire()
  if holders == 0 or soonest > 0 and now < soonest then return end
  local over, first = {}, nil
  each_held(function(claim, rec)
    local till = until_of(rec)
    if till <= now then
      over[#over + 1] = claim
    elseif not first or till < first then
      first = till
    end
  end)
  for _, claim in ipairs(over) do remove(claim, get(claim)) end
  soonest = first or 0
end

-- Removes expired claims and serves the queue: rules 1 to 3. Notifies each waiter that is granted,
-- except `me`, which gets its grant in the answer. Skips a waiter whose inbox has no subscriber.
local function settle(me)
  expire()
  while queue[1] ~= NONE do
    local claim = queue[1]
    local rec = get(claim)
    if until_of(rec) <= now then
      remove(claim, rec)
    else
      local token = entry(rec)
      if not token then
        -- The claim has just become the first in the queue. An earlier answer may have put off its
        -- next heartbeat until after the end of a lease.
        if claim ~= front and claim ~= me and holders > 0 and (soonest - now) * 3 < ttl_of(rec) then notify(rec, FORMAT .. 'L' .. claim) end
        front = claim
        return
      end
      if claim == me or notify(rec, FORMAT .. 'G' .. claim .. n16(token) .. sub(rec, 33, 48)) then
        cut(queue, claim, rec)
        waiters = waiters - 1
        grant(claim, rec, token)
      else
        remove(claim, rec)
      end
    end
  end
end

-- In how many µs the lock may become free without a release; -1: it has no holder.
local function recheck()
  if frozen > 0 then return frozen - now end
  return holders == 0 and -1 or soonest - now
end

-- How long the cool-down of strict mode still lasts while no holder is known; -1: no cool-down.
local function cooling()
  return frozen > 0 and holders == 0 and frozen - now or -1
end

-- Answers a claim that is there already, and extends it. Rule 4.
local function known(claim)
  local rec = get(claim)
  if not rec then return end
  local token, till = token_of(rec), now + ttl_of(rec)
  lasts(till)
  put(claim, sub(rec, 1, 16) .. clock .. sub(rec, 33, 80) .. mode_of(rec) .. sub(rec, 82))
  if token > 0 then
    if holders == 1 then soonest = till end
    return token
  end
  -- Counts 100 claims at most: beyond that the exact position does not matter.
  local ahead, at = 0, queue[1]
  while at ~= claim and ahead < 100 do
    ahead, at = ahead + 1, behind(get(at))
  end
  return { 1, ahead, ahead == 0 and recheck() or -1, num(sub(rec, 33, 48)), cooling() }
end

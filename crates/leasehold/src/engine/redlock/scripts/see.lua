-- One lock on one node is a hash. Field 't': the highest token of those who are gone; 'r': the highest that was given back. A field
-- for each claim: attempt, token, since (16 digits each), party; a party begins with its mode, its TTL (12 digits) and its owner
-- (16 bytes, zeros for nobody). Says: the highest token; our own record; the highest token of the same owner's other claims; when
-- somebody else's time ends; and the highest token that was given back. What the hash holds is read unless it is given.
local function see(key, claim, owner, all)
  local last, same, back, mine, till, dead = ZERO, ZERO, ZERO, nil, nil, nil
  all = all or call('HGETALL', key)
  for i = 1, #all, 2 do
    local field, record = all[i], all[i + 1]
    if field == 't' then
      if record > last then last = record end
    elseif field == 'r' then
      back = record
    else
      local token, ends = sub(record, 17, 32), sub(record, 33, 48) + sub(record, 50, 61)
      if token > last then last = token end
      if ends <= now then
        dead = dead or {}
        dead[#dead + 1] = field
      elseif field == claim then
        mine = record
      elseif owner ~= NONE and sub(record, 62, 77) == owner then
        if token > same then same = token end
      elseif not till or ends > till then
        till = ends
      end
    end
  end
  if dead then
    -- In this order: a hash without fields is gone, and its expiry with it.
    call('HSET', key, 't', last)
    call('HDEL', key, unpack(dead))
  end
  return last, mine, same, till, back
end

-- Stores a claim. The key is kept until this server's clock has passed its token, and the retention (s) after its end: then the
-- next token comes from the clock.
local function store(key, claim, last, attempt, token, party, retention)
  call('HSET', key, claim, attempt .. token .. clock .. party)
  local from = last > token and last or token
  if clock > from then from = clock end
  call('EXPIREAT', key, fmt('%.0f', math.ceil((from + sub(party, 2, 13)) / 1000000) + retention))
end

local function later(a, b)
  return a > b and a or b
end

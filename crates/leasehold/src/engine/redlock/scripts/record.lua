-- One lock on one node is one string. It begins with its format number, the highest token of the claims that have
-- ended, the highest token that was released (16 digits each), and the last claim that released it
-- (16 bytes). Then comes for each claim: the claim (16 bytes); its attempt, its token and its last
-- renewal (16 digits each); the length of its contender (4 digits); and its contender, which begins
-- with its mode, its TTL (12 digits) and its owner (16 bytes, zeros for none).
local function later(a, b)
  return a > b and a or b
end

-- Reads a lock for a claim. Returns the highest token; this client's own record; the highest token
-- of the same owner's other claims; when another owner's last claim expires; and a table for
-- `store`. That table has the beginning of the string, the others' records, and when the last of
-- them expires.
local function see(key, text, claim, owner)
  local gone, last, same, mine, till, dead, moved = ZERO, ZERO, ZERO, nil, nil, false, false
  local rest = { back = ZERO, by = NONE, records = '', ends = 0 }
  if check(text) then
    gone, rest.back, rest.by = sub(text, 2, 17), sub(text, 18, 33), sub(text, 34, 49)
    last = gone
    local at, from, others = 50, 50, {}
    while at < #text do
      local size = 68 + math.abs(sub(text, at + 64, at + 67))
      -- The clock was set back: a time in the future counts as now.
      if sub(text, at + 48, at + 63) > clock then
        text, moved = sub(text, 1, at + 47) .. clock .. sub(text, at + 64), true
      end
      local token, ends = sub(text, at + 32, at + 47), sub(text, at + 48, at + 63) + sub(text, at + 69, at + 80)
      local own = sub(text, at, at + 15) == claim
      last = later(last, token)
      if own or ends <= now then
        -- Keeps the ranges between the removed records: an owner may have hundreds, and to join
        -- them one by one is slow.
        others[#others + 1], from = sub(text, from, at - 1), at + size
        if ends <= now then dead = true else mine = sub(text, at, at + size - 1) end
      else
        if ends > rest.ends then rest.ends = ends end
        if owner ~= NONE and sub(text, at + 81, at + 96) == owner then
          same = later(same, token)
        elseif not till or ends > till then
          till = ends
        end
      end
      at = at + size
    end
    others[#others + 1] = sub(text, from)
    rest.records = table.concat(others)
    if dead then gone = last end
    if dead or moved then
      call('SET', key, FORMAT .. gone .. rest.back .. rest.by .. rest.records .. (mine or ''), 'KEEPTTL')
    end
  end
  rest.gone = gone
  return last, mine, same, till, rest
end

-- Stores a claim. The key is kept until this server's clock has passed its tokens, and for the
-- retention (s) after the last claim's end. After that the next token comes from the clock.
local function store(key, rest, last, claim, attempt, token, contender, retention)
  local ends = math.max(now, num(last), num(token)) + sub(contender, 2, 13)
  if rest.ends > ends then ends = rest.ends end
  call('SET', key, FORMAT .. rest.gone .. rest.back .. rest.by .. rest.records .. claim .. attempt .. token .. clock
    .. fmt('%04d', #contender) .. contender, 'EX', math.ceil((ends - now) / 1000000) + retention)
end

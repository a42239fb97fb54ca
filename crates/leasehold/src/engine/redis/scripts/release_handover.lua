-- The only holder, which holds exclusively, hands over to the first in line, which wants the same. The rest of this script does that, too,
-- and everything else.
local silent
if frozen == 0 and sub(main, 124, 141) == '000001000000000001' and sub(main, 28, 43) == claim then
  local first = sub(main, 60, 75)
  local rec = call('HGET', key, first)
  local ttl = rec and num(sub(rec, 82, 93))
  if rec and byte(rec, 81) == 69 and sub(rec, 17, 32) + ttl > now then
    local token, at, after, touched = sub(main, 2, 17), sub(main, 92, 107), sub(rec, 65, 80), sub(main, 18, 27)
    token = token < clock and clock or fmt('%016.0f', token + 1)
    local place = at < clock and clock or fmt('%016.0f', at + 1)
    local long = ttl / 1000000
    local old = time[1] - touched + long > ARGV[3] / 2
    call('HSET', key, first, token .. clock .. place .. NONE .. NONE .. sub(rec, 81), 'm', 'R' .. token
      .. (old and time[1] or touched) .. first .. first .. (after == NONE and NONE .. NONE or after .. sub(main, 76, 91)) .. place
      .. ZERO .. sub(main, 124, 141) .. fmt('%06d', sub(main, 142, 147) - 1) .. sub(main, 148))
    call('HDEL', key, claim)
    if old then call('EXPIRE', key, math.max(math.ceil(long) + ARGV[3], call('TTL', key))) end
    local function inbox(of) return sub(key, 1, num(sub(of, 110, 112))) .. 'i' .. sub(of, 113, 128) end
    if call('PUBLISH', inbox(rec), 'G' .. first .. token .. sub(rec, 33, 48)) > 0 then
      if after ~= NONE then
        -- The new first in line may have been told to look again only after this lease has ended.
        local next = call('HGET', key, after)
        if next and ttl * 3 < num(sub(next, 82, 93)) then call('PUBLISH', inbox(next), 'L' .. after) end
      end
      return 1
    end
    silent, main = first, call('HGET', key, 'm')
  end
end

-- Writes a record if its version is still the one that was read (16 digits; zeros if there was
-- none). An empty value removes the record. Its version stays for a day; by then the clock is far
-- beyond it. Returns the time in µs and, if the record was written, its version; zero if it was
-- removed.
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local stored = check(call('GET', KEYS[1])) or ''
local last = sub(stored, 2, 17)
local there = #stored > 17
if ARGV[1] ~= (there and last or '0000000000000000') then return { now } end
if ARGV[2] == '' then
  if there then call('SET', KEYS[1], FORMAT .. last, 'PX', 86400000) end
  return { now, 0 }
end
local version = math.max((num(last) or 0) + 1, now)
call('SET', KEYS[1], FORMAT .. fmt('%016.0f', version) .. ARGV[2])
return { now, version }

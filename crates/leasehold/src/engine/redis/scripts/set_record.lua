-- Writes a record if its version is still the one that was read (16 digits; zeros if there was
-- none). An empty value removes the record. Its version stays for a day; by then the clock is far
-- beyond it. Returns the time in us and, if the record was written, its version; zero if it was
-- removed.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stored = redis.call('GET', KEYS[1]) or ''
local last = string.sub(stored, 1, 16)
local there = #stored > 16
if ARGV[1] ~= (there and last or '0000000000000000') then return { now } end
if ARGV[2] == '' then
  if there then redis.call('SET', KEYS[1], last, 'PX', 86400000) end
  return { now, 0 }
end
local version = math.max((tonumber(last) or 0) + 1, now)
redis.call('SET', KEYS[1], string.format('%016.0f', version) .. ARGV[2])
return { now, version }

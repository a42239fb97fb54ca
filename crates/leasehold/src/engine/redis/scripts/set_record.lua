-- Writes a record if its version is still the one that was read.
--
-- KEYS: the record. ARGV: the version that was read (0: there was no record), the new value. An
-- empty value removes the record. Its version stays for a day; by then the clock is far beyond it.
-- Reply: the time (µs) and, if the record was written, its version; 0 if it was removed.
local text = call('GET', KEYS[1])
local stored = text and (read_record(text) or refuse(text)) or { version = 0, value = '' }
local is_there = stored.value ~= ''
if tonumber(ARGV[1]) ~= (is_there and stored.version or 0) then return { now } end
if ARGV[2] == '' then
  if is_there then call('SET', KEYS[1], write_record({ version = stored.version, value = '' }), 'EX', 24 * 3600) end
  return { now, 0 }
end
local version = math.max(stored.version + 1, now)
call('SET', KEYS[1], write_record({ version = version, value = ARGV[2] }))
return { now, version }

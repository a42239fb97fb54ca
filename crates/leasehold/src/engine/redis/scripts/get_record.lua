-- Reads a record.
--
-- KEYS: the record. Reply: the server's time (µs), and the stored record.
return { now, call('GET', KEYS[1]) }

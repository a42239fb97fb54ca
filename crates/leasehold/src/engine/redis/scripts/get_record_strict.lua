-- As get_record.lua, and adds the server's run and its start. Both are read in one step, so the record
-- belongs to that run.
return { now, call('GET', KEYS[1]), course, began }

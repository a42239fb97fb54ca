-- As get_record.lua. The reply has also the server's run and its start. Both are read in one step,
-- so the record is that run's.
return { now, call('GET', KEYS[1]), run, run_start }

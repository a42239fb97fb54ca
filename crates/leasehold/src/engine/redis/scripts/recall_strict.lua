-- As recall.lua, and behind it the run of the server and since when it lasts: the record and the run are of one moment.
return { now, call('GET', KEYS[1]), course, began }

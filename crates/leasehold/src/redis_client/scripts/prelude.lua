local call, encode, decode, sub = redis.call, struct.pack, struct.unpack, string.sub
-- An id that no claim and no owner has.
local NONE = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
-- Every stored value and every message begins with the number of its format and a letter for its
-- kind. The functions `read_…` and `write_…` come from the layouts: see `redis_client/layout.rs`.
local FORMAT = '1'
-- A server's run is stored as the first digits of its run_id.
local RUN_DIGITS = 8

-- ARGV: the token, the time to live.
local refused = refusal(ARGV[1])
if refused == RELEASED then return {0} end
if refused then return refused end
-- The first write is one that Redis allows when its memory is full, and so all are.
prolong(ARGV[2])
redis.call('SETRANGE', KEYS[1], 1, 'R')
return {0}

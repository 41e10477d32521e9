-- KEYS: the revocations. ARGV: the generation that the node has read or nothing, the new
-- revocations, which begin with theirs, the time to live.
local held = redis.call('GETRANGE', KEYS[1], 0, 15)
-- This very write was done already.
if held == ARGV[2]:sub(1, 16) then return {0} end
if held ~= ARGV[1] then return {11} end
-- The first write is one that Redis allows when its memory is full, and so all are.
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return {0}

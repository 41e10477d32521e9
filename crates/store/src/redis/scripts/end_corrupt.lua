-- Replaces a corrupt session by a tombstone. ARGV: the record as it was read, the tombstone,
-- the time to live.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {11} end
-- The first write is one that Redis allows when its memory is full, and so all are.
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return {0}

-- Gives a lease up for good: the mark of its own keeps late renewals from bringing it back.
-- KEYS: the incarnation's lease, the set of nodes. ARGV: the incarnation in 8 bytes, the time
-- to live, the incarnation as a member.
local held = redis.call('GET', KEYS[1])
if held and held:sub(1, 1) == 'D' then return {0} end
-- The first write is one that Redis allows when its memory is full, and so all are.
redis.call('ZREM', KEYS[2], ARGV[3])
redis.call('SET', KEYS[1], 'D' .. ARGV[1], 'PX', ARGV[2])
return {0}

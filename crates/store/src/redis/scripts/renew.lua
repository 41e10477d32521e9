-- KEYS: the incarnation's lease, the set of nodes. ARGV: the lease, the time to live, the
-- incarnation.
local held = redis.call('GET', KEYS[1])
if held and held:sub(1, 1) == 'D' then return {6, held:sub(2)} end
local time = redis.call('TIME')
local now, ttl = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[2])
-- The first write is one that Redis allows when its memory is full, and so all are:
-- nodes keep their leases.
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ttl)
redis.call('ZADD', KEYS[2], now + ttl, ARGV[3])
redis.call('PEXPIRE', KEYS[2], math.max(ttl, redis.call('PTTL', KEYS[2])))
return {0, held and 1 or 0}

-- KEYS: a tenant's sessions. ARGV: the session, its time to live.
local time = redis.call('TIME')
local now, ttl = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[2])
redis.call('ZADD', KEYS[1], now + ttl, ARGV[1])
-- Sessions live on by their appends, which do not reach here; so the set stays longer.
redis.call('PEXPIRE', KEYS[1], math.max(4 * ttl, 86400000, redis.call('PTTL', KEYS[1])))
return {0}

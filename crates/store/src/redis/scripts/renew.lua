-- KEYS: the incarnation's lease, the set of nodes, the revocations. ARGV: the lease, the time to live, the
-- incarnation.
-- The lease begins with its kind, the number of the renewal, and the newest renewal whose answer
-- the node has. What is kept of it has, instead of that, the renewal that found no lease.
local held = redis.call('GET', KEYS[1])
if held and held:sub(1, 1) == 'D' then return {6, held:sub(2)} end
local function is_before(one, other)
  local high, low = struct.unpack('>I4I4', one)
  local other_high, other_low = struct.unpack('>I4I4', other)
  return high < other_high or (high == other_high and low < other_low)
end
local number, acknowledged = ARGV[1]:sub(2, 9), ARGV[1]:sub(10, 17)
if held and is_before(number, held:sub(2, 9)) then return {10} end
-- A lease that was gone stays known as such until its node was told: the answer may be lost.
local begun = held and held:sub(10, 17) or number
local was_there = is_before(acknowledged, begun) and 0 or 1
-- What the node must know before it acts.
local revocations = redis.call('GETRANGE', KEYS[3], 0, 15)
if held and number == held:sub(2, 9) then return {0, was_there, revocations} end
local time = redis.call('TIME')
local now, ttl = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[2])
-- The first write is one that Redis allows when its memory is full, and so all are:
-- nodes keep their leases.
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local lease = ARGV[1]:sub(1, 9) .. begun .. ARGV[1]:sub(18)
redis.call('SET', KEYS[1], lease, 'PX', ttl)
redis.call('ZADD', KEYS[2], now + ttl, ARGV[3])
redis.call('PEXPIRE', KEYS[2], math.max(ttl, redis.call('PTTL', KEYS[2])))
return {0, was_there, revocations}

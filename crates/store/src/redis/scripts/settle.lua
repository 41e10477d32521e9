-- What became of overdue sessions. KEYS: a tenant's sessions. ARGV, for each: the session,
-- the score it was overdue by, its remaining time or -1 where it is gone. What others
-- wrote since stays.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, #ARGV, 3 do
  local ttl = tonumber(ARGV[i + 2])
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    if ttl < 0 then
      redis.call('ZREM', KEYS[1], ARGV[i])
    else
      redis.call('ZADD', KEYS[1], now + ttl, ARGV[i])
    end
  end
end
return {0}

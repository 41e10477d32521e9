-- KEYS: a tenant's sessions. ARGV: how many to list, how many of the overdue to name.
-- Answers how many there are, the overdue with their scores, and the list.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local overdue = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[2])
local listed = {}
if ARGV[1] ~= '0' then
  listed = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'LIMIT', 0, ARGV[1])
end
return {redis.call('ZCARD', KEYS[1]), overdue, listed}

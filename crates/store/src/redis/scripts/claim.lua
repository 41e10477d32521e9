-- ARGV: the new token, its node, the expected token or nothing for "released", the time
-- to live.
local status, owner, whole = head()
if not status then return MISSING end
if status == 'E' then return ENDED end
local new, expected, ttl = ARGV[1], ARGV[3], ARGV[4]
local record = redis.call('GET', KEYS[1])
if owner == new then
  if status == 'R' then return RELEASED end
  prolong(ttl)
else
  local as_expected = owner == expected or (expected == '' and status == 'R')
  if not as_expected or not above(new:sub(1, 8), owner:sub(1, 8)) then
    return {FENCED, whole}
  end
  local former = record:byte(43)
  local kept = math.min(former, 15)
  record = record:sub(1, 1) .. 'O' .. new .. ARGV[2] .. record:sub(27, 42)
    .. string.char(kept + 1) .. owner .. record:sub(44, 43 + 16 * kept)
    .. record:sub(44 + 16 * former)
  -- The first write is one that Redis allows when its memory is full, and so all are.
  prolong(ttl)
  redis.call('SET', KEYS[1], record, 'PX', ttl)
end
return {0, record, redis.call('LRANGE', KEYS[2], 0, -1)}

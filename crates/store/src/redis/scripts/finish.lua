-- Ends a session. ARGV: the token, the time that a tombstone stands.
local refused = refusal(ARGV[1])
if refused and refused ~= ENDED then return refused end
if not refused then
  local record = redis.call('GET', KEYS[1])
  -- The first write is one that Redis allows when its memory is full, and so all are.
  redis.call('DEL', KEYS[2])
  redis.call('SET', KEYS[1], tombstone(record), 'PX', ARGV[2])
end
return {0}

-- Ends a session; answers whose it was. ARGV: the token, the time that a tombstone stands.
local refused = refusal(ARGV[1])
if refused and refused ~= ENDED then return refused end
local record = redis.call('GET', KEYS[1])
if not refused then
  -- The first write is one that Redis allows when its memory is full, and so all are.
  redis.call('DEL', KEYS[2])
  record = tombstone(record)
  redis.call('SET', KEYS[1], record, 'PX', ARGV[2])
end
local tenant = 44 + 16 * record:byte(43) + 32
local length = struct.unpack('>I2', record:sub(tenant, tenant + 1))
return {0, record:sub(tenant + 2, tenant + 1 + length)}

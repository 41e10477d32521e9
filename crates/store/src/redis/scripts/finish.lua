-- Ends a session; answers whose it was. ARGV: the token, the time that a tombstone stands.
local refused = refusal(ARGV[1])
if refused and refused ~= ENDED then return refused end
local record = redis.call('GET', KEYS[1])
local former = record:byte(43)
local tenant = 44 + 16 * former + 32
local length = struct.unpack('>I2', record:sub(tenant, tenant + 1))
if not refused then
  local initialize, state = struct.unpack('>I4I4', record:sub(35, 42))
  redis.call('DEL', KEYS[2])
  redis.call('SET', KEYS[1], record:sub(1, 1) .. 'E' .. record:sub(3, 34)
    .. string.rep('\0', 9) .. record:sub(44 + 16 * former, #record - initialize - state),
    'PX', ARGV[2])
end
return {0, record:sub(tenant + 2, tenant + 1 + length)}

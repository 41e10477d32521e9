-- Adds bytes to the state if the record has the version before them. The record is not read, so
-- that a short change of a long state is a short write, for replicas and the append-only file, too.
-- ARGV: the token, the version before, the version after, the bytes.
local refused = refusal(ARGV[1])
if refused then return refused end
local fixed = redis.call('GETRANGE', KEYS[1], 26, 42)
local version = fixed:sub(1, 8)
if version == ARGV[2] then
  version = ARGV[3]
  local initialize, length = struct.unpack('>I4I4', fixed:sub(9, 16))
  -- Behind the former tokens and the digest of the principal: tenant and revision, with their lengths.
  local at = 43 + 16 * fixed:byte(17) + 32
  for _ = 1, 2 do
    at = at + 2 + struct.unpack('>I2', redis.call('GETRANGE', KEYS[1], at, at + 1))
  end
  -- The bytes first: where memory is short, only they can be refused, and nothing is half done.
  redis.call('SETRANGE', KEYS[1], at + initialize + length, ARGV[4])
  redis.call('SETRANGE', KEYS[1], 38, struct.pack('>I4', length + #ARGV[4]))
  redis.call('SETRANGE', KEYS[1], 26, version)
  redis.call('SETRANGE', KEYS[1], 0, LAYOUT_WITH_DIFFERENCES)
end
return {0, version}

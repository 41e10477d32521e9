-- Marks an incarnation dead. KEYS: its lease, the marker's, the set of nodes, the leases of
-- others. ARGV: the incarnation and the marker in 8 bytes each, the time to live, the number
-- of the renewal that was seen or nothing, then the members that those others are, from
-- KEYS[4] on, and last the marker and the incarnation as members.
local by = redis.call('GET', KEYS[2])
if not by then return {7} end
if by:sub(1, 1) == 'D' then return {6, by:sub(2)} end
local held = redis.call('GET', KEYS[1])
if held and held:sub(1, 1) == 'D' then return {0} end
if held and ARGV[4] ~= '' and held:sub(2, 9) ~= ARGV[4] then return {12} end
-- All that may have a link must have been named, or be asked for.
local named = {}
for i = 5, #ARGV do named[ARGV[i]] = true end
for _, member in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  if not named[member] then return {8} end
end
for i = 4, #KEYS do
  local lease = redis.call('GET', KEYS[i])
  if lease and lease:sub(1, 1) == 'L' then
    for link = 0, struct.unpack('>I2', lease:sub(18, 19)) - 1 do
      if lease:sub(20 + 8 * link, 27 + 8 * link) == ARGV[1] then return {9, ARGV[i + 1]} end
    end
  end
end
redis.call('ZREM', KEYS[3], ARGV[#ARGV])
redis.call('SET', KEYS[1], 'D' .. ARGV[2], 'PX', ARGV[3])
return {0}

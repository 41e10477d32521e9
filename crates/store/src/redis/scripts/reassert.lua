-- ARGV: the record, its token, the first number, the floor, the time to live, the ring.
local status, owner, whole = head()
local record, token, ttl = ARGV[1], ARGV[2], ARGV[5]
local ends = record:sub(2, 2) == 'E'
local first, floor = tonumber(ARGV[3]), tonumber(ARGV[4])

-- Is the held token one of those before the record's?
local function fell_back()
  for i = 0, record:byte(43) - 1 do
    if record:sub(44 + 16 * i, 59 + 16 * i) == owner then return true end
  end
end

if status == 'E' then return ends and {0} or ENDED end
if status and not fell_back() then
  if owner ~= token then return {FENCED, whole} end
  if status == 'R' then return RELEASED end
  if not ends then
    local place, hole = place(first, floor)
    if hole then return hole end
    local length = struct.unpack('>I4', record:sub(39, 42))
    local state = record:sub(#record - length + 1)
    local newer = with_state(redis.call('GET', KEYS[1]), record:sub(27, 34), state,
      record:sub(1, 1))
    if newer then redis.call('SET', KEYS[1], newer, 'KEEPTTL') end
    extend(place, first, floor, 6)
    prolong(ttl)
    return {0}
  end
end
if ends then
  redis.call('DEL', KEYS[2])
  redis.call('SET', KEYS[1], tombstone(record), 'PX', ttl)
  return {0}
end
if first > floor then return {HOLE, false} end
redis.call('SET', KEYS[1], record, 'PX', ttl)
redis.call('DEL', KEYS[2])
extend({expected = floor, count = 0}, first, floor, 6)
prolong(ttl)
return {0}

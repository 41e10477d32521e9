-- ARGV: the token, whether it prolongs, the first number, the floor, the time to live, the
-- entries.
local refused = refusal(ARGV[1])
if refused then return refused end
local first, floor = tonumber(ARGV[3]), tonumber(ARGV[4])
local place, hole = place(first, floor)
if hole then return hole end
extend(place, first, floor, 6)
if ARGV[2] == '1' then
  prolong(ARGV[5])
elseif place.count == 0 then
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
end
return {0}

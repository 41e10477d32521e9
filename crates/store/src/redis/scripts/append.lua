-- ARGV: the token, the first number, the floor, the time to live, the entries.
local refused = refusal(ARGV[1])
if refused then return refused end
local first, floor = tonumber(ARGV[2]), tonumber(ARGV[3])
local place, hole = place(first, floor)
if hole then return hole end
extend(place, first, floor, 5)
prolong(ARGV[4])
return {0}

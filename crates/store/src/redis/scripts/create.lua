-- ARGV: the record, its token, the time to live.
local status, owner, whole = head()
if status == 'E' then return ENDED end
if status then
  if owner ~= ARGV[2] then return {FENCED, whole} end
  if status == 'R' then return RELEASED end
  return {0}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
redis.call('DEL', KEYS[2])
return {0}

-- An append as nearly all are: nothing of it is held already, nothing before it is missing.
-- It comes first and asks for no more than it needs; making the functions that the others
-- need takes as long. What it does not do is left to them, before anything is written: more
-- entries than one command takes, too.
-- ARGV: as for any append.
do
  local head = redis.call('GETRANGE', KEYS[1], '0', '25')
  local layout, status = head:byte(1, 2)
  local owned = #head == 26 and layout <= 2 and status == 79 and head:sub(3, 18) == ARGV[1]
  if owned and #ARGV > 5 and #ARGV < 1000 then
    local newest = redis.call('LINDEX', KEYS[2], '-1')
    local first, floor = tonumber(ARGV[3]), tonumber(ARGV[4])
    local expected = floor
    if newest then
      local high, low = struct.unpack('>I4I4', newest)
      expected = high * 4294967296 + low + 1
    end
    if first == expected and floor <= first then
      local count = redis.call('RPUSH', KEYS[2], unpack(ARGV, 6))
      local below = floor - (first + #ARGV - 5 - count)
      if below > 0 then redis.call('LTRIM', KEYS[2], below, '-1') end
      if ARGV[2] == '1' then redis.call('PEXPIRE', KEYS[1], ARGV[5]) end
      if ARGV[2] == '1' or not newest then redis.call('PEXPIRE', KEYS[2], ARGV[5]) end
      return {0}
    end
  end
end

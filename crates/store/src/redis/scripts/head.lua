-- What every script about a session has before its own words. KEYS[1] is the record,
-- KEYS[2] the log.
-- Scripts check everything first and write last: Redis takes nothing back.
local LAYOUT, LAYOUT_WITH_DIFFERENCES = '\1', '\2'
local MISSING, FENCED, RELEASED, ENDED, HOLE = {1}, 2, {3}, {4}, 5

-- Reads the fixed part of the record: status, token and node.
local function head()
  local bytes = redis.call('GETRANGE', KEYS[1], 0, 25)
  if #bytes == 0 then return nil end
  if #bytes < 26 or bytes:byte(1) > 2 then
    error({err = 'LAYOUT the record was written by another version'})
  end
  return bytes:sub(2, 2), bytes:sub(3, 18), bytes:sub(3, 26)
end

-- Why `token` may not act for the session; nil if it may.
local function refusal(token)
  local status, owner, whole = head()
  if not status then return MISSING end
  if status == 'E' then return ENDED end
  if owner ~= token then return {FENCED, whole} end
  if status == 'R' then return RELEASED end
end

local function number(bytes)
  local high, low = struct.unpack('>I4I4', bytes)
  return high * 4294967296 + low
end

-- Is the number in 8 bytes above another? Compared in halves, because one number of
-- Lua does not hold all of it.
local function above(one, other)
  local high, low = struct.unpack('>I4I4', one)
  local other_high, other_low = struct.unpack('>I4I4', other)
  return high > other_high or (high == other_high and low > other_low)
end

-- The record with another state, if that is newer; and the version it then has. The layout says
-- whether the state has differences.
local function with_state(record, version, state, layout)
  local held = record:sub(27, 34)
  if not above(version, held) then return nil, held end
  local length = struct.unpack('>I4', record:sub(39, 42))
  return layout .. record:sub(2, 26) .. version .. record:sub(35, 38) .. struct.pack('>I4', #state)
    .. record:sub(43, #record - length) .. state, version
end

-- What stays of a record when its session is over: no former tokens, `initialize` or state.
local function tombstone(record)
  local initialize, state = struct.unpack('>I4I4', record:sub(35, 42))
  return LAYOUT .. 'E' .. record:sub(3, 34) .. string.rep('\0', 9)
    .. record:sub(44 + 16 * record:byte(43), #record - initialize - state)
end

-- Where a batch goes into the log: the last number held, the next one expected, how many
-- entries the log has; or a refusal.
local function place(first, floor)
  local count = redis.call('LLEN', KEYS[2])
  local last, expected = nil, floor
  if count > 0 then
    last = number(redis.call('LINDEX', KEYS[2], -1))
    expected = math.max(last + 1, floor)
  end
  if first > expected then return nil, {HOLE, last or false} end
  return {last = last, expected = expected, count = count}
end

-- Appends the entries in ARGV from `from` on, of which the first has the number `first`;
-- then drops what is below the floor. Entries come first: where memory is short, only
-- they can be refused, and nothing is half done.
local function extend(place, first, floor, from)
  local last = place.last
  local sent = first + #ARGV - from
  if sent >= place.expected then
    local at = from + place.expected - first
    while at <= #ARGV do
      local to = math.min(at + 999, #ARGV)
      redis.call('RPUSH', KEYS[2], unpack(ARGV, at, to))
      at = to + 1
    end
    last = sent
  end
  if not last then return end
  local oldest = place.count > 0 and place.last - place.count + 1 or place.expected
  local keep = last - math.max(floor, oldest) + 1
  if keep <= 0 then
    redis.call('DEL', KEYS[2])
  elseif floor > oldest then
    redis.call('LTRIM', KEYS[2], -keep, -1)
  end
end

local function prolong(ttl)
  redis.call('PEXPIRE', KEYS[1], ttl)
  redis.call('PEXPIRE', KEYS[2], ttl)
end

-- ARGV: the token, the version in 8 bytes, the state, the layout of a record with this state.
local refused = refusal(ARGV[1])
if refused then return refused end
local newer, version = with_state(redis.call('GET', KEYS[1]), ARGV[2], ARGV[3], ARGV[4])
if newer then redis.call('SET', KEYS[1], newer, 'KEEPTTL') end
return {0, version}

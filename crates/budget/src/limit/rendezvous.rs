//! Rendezvous hashing: each node finds the owner of a limit without asking.

/// The node that owns the limits with this hash: the one with the highest score. A node that joins or leaves
/// changes the owner of its own limits only.
pub fn owner_of(hash: u64, nodes: impl IntoIterator<Item = u64>) -> Option<u64> {
    nodes.into_iter().max_by_key(|node| (mix(hash ^ mix(*node)), *node))
}

/// The finaliser of SplitMix64: all programs must agree on it.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

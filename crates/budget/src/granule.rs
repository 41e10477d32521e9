//! Bytes are counted in granules, so that small changes cost nothing.

/// The size of a granule. A holder of fewer bytes counts as a holder of none.
pub const GRANULE_BYTES: usize = 4 << 10;

/// The bytes that a holder of `bytes` is charged for: whole granules. The difference, less than
/// one granule, is the reason why each holder is also bounded by number.
pub const fn in_granules(bytes: usize) -> usize {
    bytes / GRANULE_BYTES * GRANULE_BYTES
}

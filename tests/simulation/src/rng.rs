//! The random numbers of the simulation, all of one seed.

/// SplitMix64. Its distribution is good enough, and its numbers are the same on every machine.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number of `0..below`; 0 if the range is empty.
    pub(super) fn below(&mut self, below: u64) -> u64 {
        if below == 0 { 0 } else { self.next() % below }
    }

    /// A number of `low..=high`.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `percent` of a hundred cases.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of the elements.
    pub(super) fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        of.get(self.below(of.len() as u64) as usize).cloned()
    }

    /// A separate generator: the numbers that one part draws do not change those of another part.
    pub(super) fn fork(&mut self) -> Self {
        Self(self.next())
    }
}

//! Random numbers of a test, drawn from one seed, which it prints.

/// A generator that gives the same numbers on every machine (SplitMix64).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// A generator with a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed in the environment variable `SEED`, or one from the current time.
    pub fn seed() -> u64 {
        let named = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
        named.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(0, |now| u64::from(now.subsec_nanos()) ^ now.as_secs())
        })
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high - low + 1)
    }

    /// True in `percent` of a hundred cases.
    pub fn is(&mut self, percent: u64) -> bool {
        self.draw() % 100 < percent
    }

    /// One of the values; the slice must not be empty.
    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        let at = usize::try_from(self.draw() % of.len() as u64).unwrap_or(0);
        of[at].clone()
    }
}

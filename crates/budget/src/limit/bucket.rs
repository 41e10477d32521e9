//! A bucket of tokens: the generic cell rate algorithm, with a rate that may change at any time.

use std::time::Duration;

/// Tokens that are added at a rate, up to a most, and taken by requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    per_sec: f64,
    max: f64,
    level: f64,
    at: Duration,
}

impl Bucket {
    /// A bucket with so many tokens.
    pub fn new(per_sec: f64, max: f64, level: f64, now: Duration) -> Self {
        Self { per_sec, max, level: level.min(max), at: now }
    }

    /// Changes the rate and the most. Until `now` the former ones applied.
    pub fn change(&mut self, per_sec: f64, max: f64, now: Duration) {
        self.fill(now);
        (self.per_sec, self.max) = (per_sec, max);
        self.level = self.level.min(max);
    }

    /// Changes the rate and the most, and adds tokens or takes them back. The most applies to what is there
    /// afterwards: of tokens that are taken back, some may be above it.
    pub fn change_and_add(&mut self, per_sec: f64, max: f64, tokens: f64, now: Duration) {
        self.fill(now);
        (self.per_sec, self.max) = (per_sec, max);
        self.level = (self.level + tokens).min(max);
    }

    /// Adds tokens, or takes them back: more than there are, if need be.
    pub fn add(&mut self, tokens: f64, now: Duration) {
        self.fill(now);
        self.level = (self.level + tokens).min(self.max);
    }

    /// Takes tokens that may not be there. What is owed is `most` tokens at most.
    pub fn owe(&mut self, tokens: f64, most: f64, now: Duration) {
        self.fill(now);
        self.level = (self.level - tokens).max(self.level.min(-most));
    }

    /// The tokens that are left.
    pub fn level(&mut self, now: Duration) -> f64 {
        self.fill(now);
        self.level
    }

    /// The rate at which tokens are added.
    pub fn per_sec(&self) -> f64 {
        self.per_sec
    }

    /// Takes up to `most` whole tokens. Returns how many it took.
    pub fn take(&mut self, most: u32, now: Duration) -> u32 {
        self.fill(now);
        // A sum of small additions may be short of a whole token by its rounding.
        let whole = (self.level + 1e-9).floor().max(0.0);
        let taken = if whole >= f64::from(most) { most } else { whole as u32 };
        self.level -= f64::from(taken);
        taken
    }

    /// The time until one token is there; `None` if none is added.
    pub fn wait(&self) -> Option<Duration> {
        let missing = (1.0 - self.level).max(0.0);
        Duration::try_from_secs_f64(missing / self.per_sec).ok()
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        self.level = (self.level + self.per_sec * passed.as_secs_f64()).min(self.max);
    }
}

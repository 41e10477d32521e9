//! When a request whose owner was lost or not found is tried again, and when it is given up.
//!
//! [`Retry`] counts the attempts of one routed request. The caller passes the current time in
//! milliseconds, by a monotonic clock, and performs the [`Wait`].

/// The waits between attempts to find the owner, in milliseconds; the last one repeats.
const WAITS_MS: [u64; 7] = [0, 20, 50, 100, 200, 400, 500];

/// How long an owner must have had a request, in milliseconds, before its loss counts as a new
/// one although the client received nothing meanwhile. If owners are lost earlier each time, the
/// waits grow until the hold time is over.
const STEADY_MS: u64 = 5_000;

/// What follows an attempt that found no owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Try again at once.
    Now,
    /// Try again after this many milliseconds.
    After(u64),
    /// The hold time is over.
    GiveUp,
}

/// The attempts of one request since its client last received something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Retry {
    tries: usize,
    /// When the first of these attempts ended.
    since: Option<u64>,
    /// Since when an owner has the request and the client has received nothing from it.
    attached_since: Option<u64>,
}

impl Retry {
    /// No attempt has ended yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of ended attempts since the last progress. After the first, cached locations
    /// are not used.
    pub fn tries(&self) -> usize {
        self.tries
    }

    /// The client received something: the next loss is a new one.
    pub fn progress(&mut self) {
        *self = Self::default();
    }

    /// An owner has the request, and the client has received nothing from it yet.
    pub fn attached(&mut self, now_ms: u64) {
        self.attached_since.get_or_insert(now_ms);
    }

    /// An attempt has ended without an owner, or the owner was lost. A request that is held for
    /// `hold_ms` since the first such end is given up.
    pub fn next_wait(&mut self, now_ms: u64, hold_ms: u64) -> Wait {
        let attached = self.attached_since.take();
        if attached.is_some_and(|attached| now_ms.saturating_sub(attached) >= STEADY_MS) {
            *self = Self::default();
        }
        let wait = WAITS_MS[self.tries.min(WAITS_MS.len() - 1)];
        self.tries += 1;
        let since = *self.since.get_or_insert(now_ms);
        match wait {
            _ if now_ms.saturating_sub(since) >= hold_ms => Wait::GiveUp,
            0 => Wait::Now,
            wait => Wait::After(wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Retry, Wait};

    #[test]
    fn the_waits_grow_until_the_hold_time_is_over() {
        let mut retry = Retry::new();
        let mut now = 1_000;
        let mut waits = Vec::new();
        loop {
            match retry.next_wait(now, 2_000) {
                Wait::Now => waits.push(0),
                Wait::After(wait) => {
                    waits.push(wait);
                    now += wait;
                }
                Wait::GiveUp => break,
            }
        }
        assert_eq!(waits, [0, 20, 50, 100, 200, 400, 500, 500, 500]);
        assert_eq!(retry.tries(), waits.len() + 1);
    }

    #[test]
    fn progress_begins_anew() {
        let mut retry = Retry::new();
        assert_eq!(retry.next_wait(0, 100), Wait::Now);
        assert_eq!(retry.next_wait(0, 100), Wait::After(20));
        retry.progress();
        assert_eq!(retry.tries(), 0);
        assert_eq!(retry.next_wait(500, 100), Wait::Now);
    }

    #[test]
    fn an_owner_that_is_lost_soon_is_not_progress_and_one_that_was_steady_is() {
        let mut retry = Retry::new();
        assert_eq!(retry.next_wait(0, 20_000), Wait::Now);
        retry.attached(0);
        // The first owner since the last loss counts, however often it answers.
        retry.attached(4_000);
        assert_eq!(retry.next_wait(4_999, 20_000), Wait::After(20));
        retry.attached(5_000);
        assert_eq!(retry.next_wait(10_000, 20_000), Wait::Now);
        assert_eq!(retry.tries(), 1);
    }

    #[test]
    fn a_request_that_may_not_be_held_is_given_up_at_once() {
        assert_eq!(Retry::new().next_wait(7, 0), Wait::GiveUp);
    }
}

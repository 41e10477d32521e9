//! How long requests wait at an owner that lost its lease.
//!
//! An owner without a lease does nothing for a session, and cannot know whether another node
//! takes the session over. A request of which the client has received nothing waits until the
//! lease is renewed, and is given up after the hold time.

/// Since when the owner of a session may not act.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaseLapse {
    since: Option<u64>,
}

impl LeaseLapse {
    /// The owner may act. Returns whether it could not before.
    pub fn end_lapse(&mut self) -> bool {
        self.since.take().is_some()
    }

    /// The owner may not act. Only the first call since it could act sets the time.
    pub fn begin_lapse(&mut self, now_ms: u64) {
        self.since.get_or_insert(now_ms);
    }

    /// Until when requests wait, by the clock of [`LeaseLapse::begin_lapse`]. `None` if the owner may act.
    pub fn held_until(&self, hold_ms: u64) -> Option<u64> {
        Some(self.since?.saturating_add(hold_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::LeaseLapse;

    #[test]
    fn requests_wait_for_the_hold_time_since_the_owner_could_act_last() {
        let mut lapse = LeaseLapse::default();
        assert_eq!(lapse.held_until(25_000), None);
        lapse.begin_lapse(1_000);
        lapse.begin_lapse(9_000);
        assert_eq!(lapse.held_until(25_000), Some(26_000));
        assert!(lapse.end_lapse());
        assert!(!lapse.end_lapse());
        assert_eq!(lapse.held_until(25_000), None);
        lapse.begin_lapse(50_000);
        assert_eq!(lapse.held_until(0), Some(50_000));
    }
}

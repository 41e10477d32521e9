//! The limits that this node owns.

use std::collections::HashMap;
use std::time::Duration;

use budget::limit::{CountOwner, Member, Membership, Rate, RateOwner};

use super::wire::{LimitReport, LimitShare};

/// Most limits that a node owns. The nodes get no share of further ones, and have each the limit divided
/// by the number of nodes.
const OWNED_MAX: usize = 65_536;

/// The limits that this node owns.
#[derive(Debug, Default)]
pub(super) struct Owned {
    rates: HashMap<u128, RateOwner>,
    counts: HashMap<u128, CountOwner>,
    membership: Membership,
}

impl Owned {
    /// Notes the live nodes.
    pub(super) fn note_members(&mut self, members: &[Member], now: Duration) {
        self.membership.note(members, now);
    }

    /// Takes the report of a node, and returns its share.
    pub(super) fn report(
        &mut self,
        from: u64,
        report: &LimitReport,
        members: &[Member],
        now: Duration,
    ) -> LimitShare {
        let id = report.id();
        let is_known = self.rates.contains_key(&id) || self.counts.contains_key(&id);
        let is_full = self.len() >= OWNED_MAX;
        let Some(demand) = report.report().filter(|_| is_known || !is_full) else {
            return LimitShare::none();
        };
        let grant = if report.per_sec > 0.0 {
            let rate = Rate { per_sec: report.per_sec, burst: report.max };
            let new = || match self.membership.has_lost_one(now) {
                true => RateOwner::after_loss(rate, now),
                false => RateOwner::new(rate, now),
            };
            let owner = self.rates.entry(id).or_insert_with(new);
            owner.report(from, demand, rate, members, now)
        } else {
            let owner = self.counts.entry(id).or_insert_with(|| CountOwner::new(now));
            owner.report(from, demand, report.max as u64, members, now)
        };
        LimitShare::given(grant)
    }

    /// The number of limits.
    pub(super) fn len(&self) -> usize {
        self.rates.len() + self.counts.len()
    }

    /// Forgets what nothing is lost with.
    pub(super) fn forget(&mut self, now: Duration) {
        self.rates.retain(|_, owner| !owner.is_forgettable(now));
        self.counts.retain(|_, owner| !owner.is_forgettable(now));
    }
}

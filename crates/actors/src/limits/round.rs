//! Which limits a node reports to an owner in one interval, and in which messages.
//!
//! All limits in use are reported in each interval: a share is valid for three. Only beyond a bound some are
//! left out, always the same ones. These have no share, and the node has the limit divided by the number of
//! nodes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use budget::limit::divide;

use super::entry::{CountEntry, RateEntry};
use super::wire::LimitReport;

/// Most reports in one message.
pub(super) const REPORTS_MAX: usize = 2_000;

/// Most reports to one owner in an interval. Limits of whole tenants come before those of single clients, and
/// each tenant has an equal part of the room: one with many clients does not displace another one.
pub(super) const ROUND_MAX: usize = 20_000;

/// A limit that is to be reported.
#[derive(Clone, Debug)]
pub(super) enum Reported {
    Rate(Arc<RateEntry>),
    Count(Arc<CountEntry>),
}

impl Reported {
    fn id(&self) -> u128 {
        match self {
            Self::Rate(entry) => entry.id,
            Self::Count(entry) => entry.id,
        }
    }

    fn tenant(&self) -> u64 {
        match self {
            Self::Rate(entry) => entry.tenant,
            Self::Count(entry) => entry.tenant,
        }
    }

    /// The report, if there is demand or a share.
    pub(super) fn report(&self, now: Duration) -> Option<LimitReport> {
        match self {
            Self::Rate(entry) => entry.report(now),
            Self::Count(entry) => entry.report(now),
        }
    }
}

/// The limits that are to be reported to one owner.
#[derive(Debug, Default)]
pub(super) struct OfOwner {
    of_tenants: Vec<Reported>,
    of_clients: Vec<Reported>,
}

impl OfOwner {
    pub(super) fn add(&mut self, reported: Reported) {
        match &reported {
            Reported::Rate(entry) if entry.is_of_client => self.of_clients.push(reported),
            Reported::Rate(_) | Reported::Count(_) => self.of_tenants.push(reported),
        }
    }

    /// The limits of each message: at most [`ROUND_MAX`] in all, [`REPORTS_MAX`] in one.
    pub(super) fn messages(self) -> Vec<Vec<Reported>> {
        let mut chosen = fair(self.of_tenants, ROUND_MAX);
        chosen.extend(fair(self.of_clients, ROUND_MAX - chosen.len()));
        let mut messages = Vec::with_capacity(chosen.len().div_ceil(REPORTS_MAX));
        while chosen.len() > REPORTS_MAX {
            let rest = chosen.split_off(REPORTS_MAX);
            messages.push(std::mem::replace(&mut chosen, rest));
        }
        messages.push(chosen);
        messages
    }
}

/// At most `room` of them. If they are more, no tenant gets more than another one that lacks some, and of a
/// tenant the same ones are chosen each time.
fn fair(all: Vec<Reported>, room: usize) -> Vec<Reported> {
    if all.len() <= room {
        return all;
    }
    let mut by_tenant: HashMap<u64, Vec<Reported>> = HashMap::new();
    for reported in all {
        by_tenant.entry(reported.tenant()).or_default().push(reported);
    }
    let mut by_tenant: Vec<_> = by_tenant.into_values().collect();
    let wanted: Vec<f64> = by_tenant.iter().map(|of_tenant| of_tenant.len() as f64).collect();
    for (of_tenant, part) in by_tenant.iter_mut().zip(divide(room as f64, &wanted)) {
        let part = part.floor() as usize;
        if part < of_tenant.len() {
            of_tenant.select_nth_unstable_by_key(part, Reported::id);
            of_tenant.truncate(part);
        }
    }
    by_tenant.into_iter().flatten().collect()
}

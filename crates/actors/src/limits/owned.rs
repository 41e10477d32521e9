//! The limits that this node owns.
//!
//! A tenant with many clients does not displace the limits of another one: where the table is full, the tenant
//! with the most limits loses some of its own, first those that no node uses.

use std::collections::HashMap;
use std::time::Duration;

use budget::limit::{CountOwner, INTERVAL, Member, Membership, Rate, RateOwner};

use super::wire::{LimitReport, LimitShare};

/// Most limits that a node owns. The nodes get no share of further ones, and have each the limit divided
/// by the number of nodes.
const OWNED_MAX: usize = 65_536;

/// Most of them of one tenant. At this bound a new one takes the place of one that no node uses.
const OF_TENANT_MAX: usize = OWNED_MAX / 2;

/// The part of a tenant's limits that is forgotten at once where there is no room. Finding them takes a look at
/// all of the tenant's, so it is done once in an interval.
const FORGOTTEN_PART: usize = 64;

/// The limits that this node owns.
#[derive(Debug, Default)]
pub(super) struct Owned {
    tenants: HashMap<u64, OfTenant>,
    /// The number of limits of all tenants.
    len: usize,
    membership: Membership,
}

/// The limits of one tenant.
#[derive(Debug, Default)]
struct OfTenant {
    rates: HashMap<u128, RateOwner>,
    counts: HashMap<u128, CountOwner>,
    /// When room was looked for last: among unused limits, and among all. Apart, so that a tenant at its own
    /// bound does not delay that it makes room for another.
    looked: [Option<Duration>; 2],
}

impl OfTenant {
    fn len(&self) -> usize {
        self.rates.len() + self.counts.len()
    }

    fn has(&self, id: u128) -> bool {
        self.rates.contains_key(&id) || self.counts.contains_key(&id)
    }

    /// Forgets some rates: those that have been unused until their tokens are nearly there again. With
    /// `also_used`, others follow: their next owner begins without tokens.
    fn make_room(&mut self, also_used: bool, now: Duration) {
        let looked = &mut self.looked[usize::from(also_used)];
        if looked.is_some_and(|at| now.saturating_sub(at) < INTERVAL) {
            return;
        }
        *looked = Some(now);
        let full_in = |owner: &RateOwner| owner.full_in(now).unwrap_or(Duration::MAX);
        let is_open = |owner: &RateOwner| also_used || owner.full_in(now).is_some();
        let open = self.rates.iter().filter(|(_, owner)| is_open(owner));
        let mut open: Vec<_> = open.map(|(id, owner)| (full_in(owner), *id)).collect();
        let some = self.rates.len().div_ceil(FORGOTTEN_PART).min(open.len());
        if some < open.len() {
            open.select_nth_unstable(some);
        }
        for (_, id) in &open[..some] {
            self.rates.remove(id);
        }
    }
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
        let Some(demand) = report.report() else { return LimitShare::none() };
        let is_known = self.tenants.get(&report.tenant).is_some_and(|of_tenant| of_tenant.has(id));
        if !is_known && !self.has_room(report.tenant, now) {
            return LimitShare::none();
        }
        let of_tenant = self.tenants.entry(report.tenant).or_default();
        self.len += usize::from(!is_known);
        let grant = if report.per_sec > 0.0 {
            let rate = Rate { per_sec: report.per_sec, burst: report.max };
            let new = || match self.membership.has_changed(now) {
                true => RateOwner::after_loss(rate, now),
                false => RateOwner::new(rate, now),
            };
            let owner = of_tenant.rates.entry(id).or_insert_with(new);
            owner.report(from, demand, rate, members, now)
        } else {
            let owner = of_tenant.counts.entry(id).or_insert_with(|| CountOwner::new(now));
            owner.report(from, demand, report.max as u64, members, now)
        };
        LimitShare::given(grant)
    }

    /// Makes room for one more limit of the tenant. Returns whether there is room.
    fn has_room(&mut self, tenant: u64, now: Duration) -> bool {
        let of_tenant = self.tenants.get(&tenant).map_or(0, OfTenant::len);
        if of_tenant >= OF_TENANT_MAX && !self.make_room(tenant, false, now) {
            return false;
        }
        if self.len < OWNED_MAX {
            return true;
        }
        let largest = self.tenants.iter().max_by_key(|(_, of_tenant)| of_tenant.len());
        let Some((&largest, most)) = largest else { return true };
        // By more than one: two tenants must not displace each other without an end.
        let also_used = most.len() > of_tenant + 1 + most.len() / FORGOTTEN_PART;
        self.make_room(largest, also_used, now)
    }

    fn make_room(&mut self, tenant: u64, also_used: bool, now: Duration) -> bool {
        let Some(of_tenant) = self.tenants.get_mut(&tenant) else { return true };
        let before = of_tenant.len();
        of_tenant.make_room(also_used, now);
        let forgotten = before - of_tenant.len();
        self.len -= forgotten;
        forgotten > 0
    }

    /// The number of limits.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Forgets what nothing is lost with.
    pub(super) fn forget(&mut self, now: Duration) {
        self.tenants.retain(|_, of_tenant| {
            of_tenant.rates.retain(|_, owner| !owner.is_forgettable(now));
            of_tenant.counts.retain(|_, owner| !owner.is_forgettable(now));
            of_tenant.len() > 0
        });
        self.len = self.tenants.values().map(OfTenant::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use budget::limit::Report;

    use super::*;

    const MEMBERS: [Member; 2] =
        [Member { node: 1, is_linked: true }, Member { node: 2, is_linked: true }];

    fn ask(owned: &mut Owned, tenant: u64, id: u128, is_last: bool, now: Duration) -> bool {
        let report = Report { demand: 10.0, level: 0.0, had_share: false, is_last, applied: 0 };
        // A token takes 36 s, and the burst an hour.
        let report = LimitReport::new((id, tenant), report, 100.0 / 3_600.0, 100.0);
        owned.report(1, &report, &MEMBERS, now).grant().is_some()
    }

    fn fill(owned: &mut Owned, tenant: u64, number: usize, is_last: bool, now: Duration) -> usize {
        let ids = (0..number).map(|at| u128::from(tenant) << 64 | at as u128);
        ids.filter(|id| {
            let is_given = ask(owned, tenant, *id, false, now);
            is_given && (!is_last || ask(owned, tenant, *id, true, now))
        })
        .count()
    }

    #[test]
    fn a_tenant_with_many_clients_leaves_room_for_another() {
        let (mut owned, now) = (Owned::default(), Duration::from_secs(9));
        for tenant in 1..4 {
            fill(&mut owned, tenant, OWNED_MAX, false, now);
            // As documented: half of what an owner keeps.
            assert!(owned.tenants[&tenant].len() <= 32_768);
        }
        assert!(owned.len() <= OWNED_MAX);
        let now = now + INTERVAL;
        assert_eq!(fill(&mut owned, 9, 500, false, now), 500);
        assert_eq!(owned.tenants[&9].len(), 500);
    }

    #[test]
    fn an_owner_that_joined_lately_gives_no_second_burst() {
        let (mut owned, ms) = (Owned::default(), Duration::from_millis);
        owned.note_members(&MEMBERS, ms(5_000));
        let mut tokens = |id, now| {
            let demand =
                Report { demand: 100.0, level: 0.0, had_share: false, is_last: false, applied: 0 };
            let report = LimitReport::new((1, id), demand, 100.0 / 3_600.0, 100.0);
            owned.report(1, &report, &MEMBERS, now).grant().unwrap().tokens
        };
        let (lately, later) = (tokens(1, ms(5_010)), tokens(2, ms(7_000)));
        assert!(lately < 2.0 && later > 5.0, "{lately} {later}");
    }

    #[test]
    fn a_limit_that_no_node_uses_makes_room_first_the_one_nearest_to_full() {
        let (mut owned, second) = (Owned::default(), Duration::from_secs(1));
        assert_eq!(fill(&mut owned, 1, 4_000, true, second), 4_000);
        let used = |at: usize| 5_u128 << 64 | at as u128;
        let rest = OF_TENANT_MAX - 4_000;
        let given = (0..rest).filter(|at| ask(&mut owned, 1, used(*at), false, 9 * second)).count();
        assert_eq!(given, rest);
        assert!(ask(&mut owned, 1, 7 << 64, false, 9 * second), "there was no room");
        let kept: HashSet<_> = owned.tenants[&1].rates.keys().copied().collect();
        assert!((0..rest).all(|at| kept.contains(&used(at))));
        let unused = kept.iter().filter(|id| **id >> 64 == 1).count();
        assert_eq!(unused, 4_000 - OF_TENANT_MAX / FORGOTTEN_PART);
    }
}

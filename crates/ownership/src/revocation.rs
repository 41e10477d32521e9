//! Clients whose credentials were withdrawn, as each node and the store keep them.
//!
//! A client has two times: when it was revoked last, and when that was taken back last. Two lists are
//! merged by the later time of each. So a change may arrive twice, late, or by several ways, and a store
//! that lost one gets it from any node that has it.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// How long after a revocation its client may have older tokens that tell their age, in milliseconds:
/// 31 days, longer than any token that is accepted lives. So long it counts among those of its tenant,
/// and so long one that was taken back is kept.
pub const REVOCATION_MS: u64 = 31 * 24 * 3_600 * 1_000;

/// Most revocations that operators may make, of all tenants.
pub const REVOCATIONS_MAX: usize = 10_000;

/// Most revocations that operators may make of one tenant.
pub const TENANT_REVOCATIONS_MAX: usize = 1_000;

/// Most revocations of a list. Nodes that could not see each other may have made more together than one
/// may, and those of tokens are kept for longer than they count among these. At this bound the oldest is
/// dropped: those of keys last, which count as long as they are not taken back.
const KEPT_MAX: usize = 2 * REVOCATIONS_MAX;

/// What the name of a client begins with whose credential is a key.
pub const KEY_NAME: &str = "key:";

/// Most bytes of a client's name.
pub const REVOKED_NAME_BYTES_MAX: usize = 4 << 10;

/// The version of the revocations in a store: another one with each change, compared for equality only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RevocationGeneration(pub [u8; 16]);

impl RevocationGeneration {
    /// The generation of a store without any revocation.
    pub const NONE: Self = Self([0; 16]);

    /// The next generation. The random number tells it from one that a failover lost.
    pub fn next(self, random: u64) -> Self {
        let (mut bytes, mut counter) = ([0; 16], [0; 8]);
        counter.copy_from_slice(&self.0[..8]);
        let counter = u64::from_be_bytes(counter).saturating_add(1);
        bytes[..8].copy_from_slice(&counter.to_be_bytes());
        bytes[8..].copy_from_slice(&random.to_be_bytes());
        Self(bytes)
    }
}

/// When a client was revoked, and when that was taken back; in milliseconds since 1970, 0: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RevocationTimes {
    /// When it was revoked last.
    pub revoked_ms: u64,
    /// When that was taken back last.
    pub lifted_ms: u64,
}

impl RevocationTimes {
    /// A revocation at this time, of a client with these times.
    pub fn revoked(self, now_ms: u64) -> Self {
        // Another node's clock may be ahead.
        Self { revoked_ms: now_ms.max(self.revoked_ms).max(self.lifted_ms), ..self }
    }

    /// A revocation that is taken back at this time, of a client with these times.
    pub fn lifted(self, now_ms: u64) -> Self {
        Self {
            lifted_ms: now_ms.max(self.lifted_ms).max(self.revoked_ms.saturating_add(1)),
            ..self
        }
    }

    /// Is it taken back?
    pub fn is_lifted(self) -> bool {
        self.lifted_ms > self.revoked_ms
    }

    /// Does it refuse a token that was issued at this time, by a clock that may differ by so much? The
    /// age of a token without a time is not known.
    pub fn refuses_token(self, issued_ms: Option<u64>, skew_ms: u64) -> bool {
        let until = self.revoked_ms.saturating_add(skew_ms);
        !self.is_lifted() && issued_ms.is_none_or(|issued| issued <= until)
    }

    /// Does it refuse a key? Keys have no age.
    pub fn refuses_key(self) -> bool {
        !self.is_lifted()
    }

    /// When it may be forgotten. `None` until it is taken back: the client's keys, and its tokens without
    /// a time, may be valid for any time.
    pub fn ends_ms(self) -> Option<u64> {
        self.is_lifted().then(|| self.lifted_ms.saturating_add(REVOCATION_MS))
    }

    fn changed_ms(self) -> u64 {
        self.revoked_ms.max(self.lifted_ms)
    }

    fn merged(self, other: Self) -> Self {
        Self {
            revoked_ms: self.revoked_ms.max(other.revoked_ms),
            lifted_ms: self.lifted_ms.max(other.lifted_ms),
        }
    }
}

/// A client of a tenant, and when it was revoked.
#[derive(Clone, PartialEq, Eq)]
pub struct Revocation {
    /// The tenant.
    pub tenant: Arc<str>,
    /// The name of the client's principal. Must not be logged.
    pub principal: Arc<str>,
    /// When.
    pub times: RevocationTimes,
}

impl fmt::Debug for Revocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revocation").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

/// Revocations, at most one of each client. Bounded: see [`REVOCATIONS_MAX`].
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RevocationList {
    by_tenant: HashMap<Arc<str>, HashMap<Arc<str>, RevocationTimes>>,
    count: usize,
}

impl fmt::Debug for RevocationList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevocationList").field("count", &self.count).finish_non_exhaustive()
    }
}

impl RevocationList {
    /// Adds a revocation. Returns whether the list has changed.
    pub fn merge(&mut self, revocation: &Revocation) -> bool {
        let Revocation { tenant, principal, times } = revocation;
        if principal.len() > REVOKED_NAME_BYTES_MAX {
            return false;
        }
        let held = self.times(tenant, principal);
        let merged = held.unwrap_or_default().merged(*times);
        if held == Some(merged) {
            return false;
        }
        if held.is_none() {
            if self.count >= KEPT_MAX {
                self.remove_oldest();
            }
            self.count += 1;
        }
        let of_tenant = self.by_tenant.entry(Arc::clone(tenant)).or_default();
        of_tenant.insert(Arc::clone(principal), merged);
        true
    }

    /// Adds revocations. Returns whether the list has changed.
    pub fn merge_all(&mut self, revocations: &[Revocation]) -> bool {
        revocations.iter().filter(|one| self.merge(one)).count() > 0
    }

    /// The times of this client of the tenant, if it has any.
    pub fn times(&self, tenant: &str, principal: &str) -> Option<RevocationTimes> {
        self.by_tenant.get(tenant)?.get(principal).copied()
    }

    /// When this client was revoked last; 0: never. Sessions of a client belong to the time since.
    pub fn revoked_ms(&self, tenant: &str, principal: &str) -> u64 {
        self.times(tenant, principal).map_or(0, |times| times.revoked_ms)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of revocations.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The number of revocations of a tenant that count among the [most](TENANT_REVOCATIONS_MAX) that
    /// operators may make: of keys, and those of the last 31 days.
    pub fn bounded_of(&self, tenant: &str, now_ms: u64) -> usize {
        let is_bounded = |(principal, times): &(&Arc<str>, &RevocationTimes)| {
            must_stay(principal, **times)
                || times.changed_ms().saturating_add(REVOCATION_MS) > now_ms
        };
        self.by_tenant
            .get(tenant)
            .map_or(0, |of_tenant| of_tenant.iter().filter(is_bounded).count())
    }

    /// The number of revocations of all tenants that count among the [most](REVOCATIONS_MAX).
    pub fn bounded(&self, now_ms: u64) -> usize {
        self.by_tenant.keys().map(|tenant| self.bounded_of(tenant, now_ms)).sum()
    }

    /// All revocations, in the order of their tenants and clients.
    pub fn all(&self) -> Vec<Revocation> {
        let mut all: Vec<_> = self.iter().collect();
        all.sort_by(|one, other| {
            (&one.tenant, &one.principal).cmp(&(&other.tenant, &other.principal))
        });
        all
    }

    /// The revocations that another list does not have, or not as new.
    pub fn news_for(&self, other: &Self) -> Vec<Revocation> {
        let is_news = |one: &Revocation| {
            let held = other.times(&one.tenant, &one.principal);
            held.is_none_or(|held| held.merged(one.times) != held)
        };
        self.iter().filter(is_news).collect()
    }

    /// Removes those that have ended. Returns whether there were any.
    pub fn remove_ended(&mut self, now_ms: u64) -> bool {
        let before = self.count;
        self.by_tenant.retain(|_, of_tenant| {
            of_tenant.retain(|_, times| times.ends_ms().is_none_or(|ends| ends > now_ms));
            !of_tenant.is_empty()
        });
        self.count = self.by_tenant.values().map(HashMap::len).sum();
        self.count < before
    }

    /// A number that two equal lists have in common, and two others hardly ever. Programs of two versions
    /// may differ in it; then one sends the other its list in vain.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for Revocation { tenant, principal, times } in self.all() {
            (tenant, principal, times).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn iter(&self) -> impl Iterator<Item = Revocation> {
        self.by_tenant.iter().flat_map(|(tenant, of_tenant)| {
            of_tenant.iter().map(|(principal, times)| Revocation {
                tenant: Arc::clone(tenant),
                principal: Arc::clone(principal),
                times: *times,
            })
        })
    }

    fn remove_oldest(&mut self) {
        let age = |one: &Revocation| (must_stay(&one.principal, one.times), one.times.changed_ms());
        let Some(first) = self.iter().min_by_key(age) else { return };
        if let Some(of_tenant) = self.by_tenant.get_mut(&first.tenant) {
            of_tenant.remove(&first.principal);
            self.count -= 1;
            if of_tenant.is_empty() {
                self.by_tenant.remove(&first.tenant);
            }
        }
    }
}

/// Whether forgetting the revocation would surely make a credential count again that is still there.
fn must_stay(principal: &str, times: RevocationTimes) -> bool {
    principal.starts_with(KEY_NAME) && !times.is_lifted()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn revocation(principal: &str, revoked_ms: u64, lifted_ms: u64) -> Revocation {
        let times = RevocationTimes { revoked_ms, lifted_ms };
        Revocation { tenant: "acme".into(), principal: principal.into(), times }
    }

    fn list(all: &[Revocation]) -> RevocationList {
        let mut list = RevocationList::default();
        all.iter().for_each(|one| {
            list.merge(one);
        });
        list
    }

    #[test]
    fn a_token_counts_if_it_was_issued_after_the_revocation_by_any_clock() {
        let times = RevocationTimes::default().revoked(10_000);
        for issued in [None, Some(0), Some(9_000), Some(10_000), Some(10_500)] {
            assert!(times.refuses_token(issued, 500), "{issued:?}");
        }
        assert!(!times.refuses_token(Some(10_501), 500) && times.refuses_key());
        let lifted = times.lifted(11_000);
        assert!(!lifted.refuses_token(None, 500) && !lifted.refuses_key());
        assert!(lifted.revoked(12_000).refuses_key());
    }

    #[test]
    fn the_clock_of_another_node_undoes_no_command() {
        let times = RevocationTimes::default().revoked(10_000);
        assert!(times.lifted(5).is_lifted());
        assert!(!times.lifted(20_000).revoked(5).is_lifted());
    }

    #[test]
    fn a_list_keeps_at_most_twice_what_may_be_made_and_drops_the_oldest_but_no_key() {
        let mut list = list(&[revocation("key:ada", 0, 0)]);
        for number in 0..KEPT_MAX as u64 {
            list.merge(&revocation(&number.to_string(), number + 1, 0));
        }
        assert_eq!((list.count(), list.all().len()), (KEPT_MAX, KEPT_MAX));
        assert!(list.times("acme", "0").is_none() && list.times("acme", "1").is_some());
        assert!(list.times("acme", "key:ada").is_some());
    }

    #[test]
    fn only_what_was_taken_back_ends() {
        let mut list = list(&[revocation("ada", 5, 0), revocation("bob", 5, 7)]);
        assert!(!list.remove_ended(7 + REVOCATION_MS - 1));
        assert!(list.remove_ended(7 + REVOCATION_MS));
        assert!(!list.remove_ended(u64::MAX), "a token without a time may still be valid");
        assert_eq!((list.count(), list.revoked_ms("acme", "ada")), (1, 5));
    }

    #[test]
    fn those_of_tokens_leave_room_for_others_after_a_month_and_those_of_keys_do_not() {
        let list = list(&[
            revocation("key:ada", 5, 0),
            revocation("key:bob", 5, 6),
            revocation("sub:https://i.example ada", 5, 0),
        ]);
        let bounded = |now| (list.bounded_of("acme", now), list.bounded(now));
        assert_eq!(bounded(4 + REVOCATION_MS), (3, 3));
        assert_eq!(bounded(5 + REVOCATION_MS), (2, 2));
        assert_eq!(bounded(u64::MAX), (1, 1));
        assert_eq!(list.bounded_of("other", 0), 0);
    }

    fn any_revocation() -> impl Strategy<Value = Revocation> {
        ("[ab]", 0..4_u64, 0..4_u64)
            .prop_map(|(principal, revoked, lifted)| revocation(&principal, revoked, lifted))
    }

    proptest! {
        #[test]
        fn lists_agree_whatever_the_order_in_which_they_are_merged(
            one in prop::collection::vec(any_revocation(), 0..6),
            other in prop::collection::vec(any_revocation(), 0..6),
        ) {
            let mut there = list(&one);
            other.iter().for_each(|revocation| { there.merge(revocation); });
            let mut here = list(&other);
            let news = list(&one).news_for(&here);
            news.iter().for_each(|revocation| { here.merge(revocation); });
            prop_assert_eq!(&here, &there);
            prop_assert_eq!(here.fingerprint(), there.fingerprint());
            prop_assert!(here.news_for(&there).is_empty());
        }
    }
}

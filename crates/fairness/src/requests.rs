//! Which requests wait for a permit while other threads use the core.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use crate::core_wait::CoreWait;
use crate::permit::{TickPermit, is_paced};
use crate::ready_time::ReadyTime;

thread_local! {
    /// The requests that this thread serves.
    static REQUESTS: RefCell<Option<Requests>> = const { RefCell::new(None) };
}

/// A tenant with more requests than one in this time at the thread...
const APART: Duration = Duration::from_millis(4);

/// ...and than so many at once has the further ones wait.
const AT_ONCE: u32 = 4;

/// A tenant without a request for so long is not delayed by others, so it is forgotten, soon after.
const PRESENT: Duration = Duration::from_secs(1);

/// The longest wait of a request.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// The requests of one thread.
struct Requests {
    ready_time: ReadyTime,
    core_wait: CoreWait,
    /// When the thread last waited long.
    waited_long: Option<Instant>,
    tenants: Tenants,
}

/// Whether the request of a tenant that began at this time should wait for its turn, with [`request_turn`], so that
/// those of other tenants wait less.
///
/// A thread that shares its core with others that are always ready waits for them with each step of a request, and the
/// more so the more requests it has. So while a thread that serves clients waits for its core for more than half of the
/// time, requests of a tenant with many of them wait. A tenant has many if it has more than one in 4 ms at the thread,
/// beyond four at once. None waits if no other tenant had a request at the thread in the last second.
pub fn request_waits(tenant: &Arc<str>, at: Instant) -> bool {
    if !is_paced() {
        return false;
    }
    REQUESTS.with_borrow_mut(|requests| {
        let Requests { ready_time, core_wait, waited_long, tenants } =
            requests.get_or_insert_with(|| Requests {
                ready_time: ReadyTime::of_this_thread(),
                core_wait: CoreWait::default(),
                waited_long: None,
                tenants: Tenants::default(),
            });
        core_wait.note(at, || ready_time.read().map(|ready| (Instant::now(), ready)));
        if core_wait.is_long() {
            *waited_long = Some(at);
        }
        match *waited_long {
            // Requests that wait leave the thread its core, soon for most of the time.
            Some(last) if at.saturating_duration_since(last) < PRESENT => {
                tenants.note(tenant, at) && core_wait.is_long()
            }
            Some(_) => {
                (*waited_long, *tenants) = Default::default();
                false
            }
            None => false,
        }
    })
}

/// Waits for a [permit](TickPermit) to begin a request, which the requests of tenants get one after another. At most for
/// 100 ms: then the request begins without one.
pub async fn request_turn(tenant: &Arc<str>) {
    let _late = timeout(WAIT_MAX, TickPermit::of_request(tenant)).await;
}

/// The tenants that had requests. It reads no clock.
#[derive(Debug, Default)]
struct Tenants {
    /// Bounded by the tenants that had a request in twice [`PRESENT`].
    all: HashMap<Arc<str>, TenantRequests>,
    /// When those that are not present were forgotten.
    looked: Option<Instant>,
}

/// The requests of one tenant.
#[derive(Debug)]
struct TenantRequests {
    last: Instant,
    /// When it would have no requests at once any more if each took [`APART`].
    none_from: Instant,
}

impl Tenants {
    /// Notes a request, and returns whether it waits.
    fn note(&mut self, tenant: &Arc<str>, at: Instant) -> bool {
        let looked = *self.looked.get_or_insert(at);
        if at.saturating_duration_since(looked) >= PRESENT {
            self.all.retain(|_, of_it| at.saturating_duration_since(of_it.last) < PRESENT);
            self.looked = Some(at);
        }
        if !self.all.contains_key(tenant) {
            self.all.insert(Arc::clone(tenant), TenantRequests { last: at, none_from: at });
        }
        let is_alone = self.all.len() == 1;
        self.all.get_mut(tenant).is_some_and(|of_it| of_it.note(at)) && !is_alone
    }
}

impl TenantRequests {
    /// Notes a request, and returns whether there are many.
    fn note(&mut self, at: Instant) -> bool {
        self.last = self.last.max(at);
        let (none_from, most) = (self.none_from.max(at) + APART, at + APART * AT_ONCE);
        self.none_from = none_from.min(most);
        none_from > most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permit::withhold_permits;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_tenant_with_many_requests_waits_beside_another_one() {
        let (mut tenants, begin) = (Tenants::default(), Instant::now());
        let (busy, quiet): (Arc<str>, Arc<str>) = ("busy".into(), "quiet".into());
        for millis in 0..100 {
            assert!(!tenants.note(&busy, begin + MS(millis)), "it is alone");
        }
        for millis in 100..200 {
            let quiet_waits =
                millis % 16 == 4 && (0..AT_ONCE).any(|_| tenants.note(&quiet, begin + MS(millis)));
            assert!(!quiet_waits, "{millis}");
            assert!(tenants.note(&busy, begin + MS(millis)), "{millis}");
        }
        assert!(tenants.note(&busy, begin + MS(202)), "3 ms after the last one");
        assert!(!tenants.note(&busy, begin + MS(206)), "4 ms after it");
        assert!(!tenants.note(&quiet, begin + MS(206)));
    }

    #[test]
    fn a_tenant_that_had_no_request_for_a_while_is_forgotten() {
        let (mut tenants, begin) = (Tenants::default(), Instant::now());
        let (busy, gone): (Arc<str>, Arc<str>) = ("busy".into(), "gone".into());
        tenants.note(&gone, begin);
        let waits =
            (1..3_000).filter(|millis| tenants.note(&busy, begin + MS(*millis))).last().unwrap();
        assert!((999..2_000).contains(&waits), "{waits}");
        assert_eq!(tenants.all.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_tenth_of_a_second_at_most() {
        let (tenant, began): (Arc<str>, _) = ("a".into(), tokio::time::Instant::now());
        withhold_permits();
        request_turn(&tenant).await;
        assert_eq!(began.elapsed(), WAIT_MAX);
    }
}

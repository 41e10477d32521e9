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
    static REQUESTS: RefCell<Option<(ReadyTime, Requests)>> = const { RefCell::new(None) };
}

/// A tenant has many requests if it has more than one at the thread in this time...
const APART: Duration = Duration::from_millis(4);

/// ...and more than so many at once.
const AT_ONCE: u32 = 4;

/// A tenant without a request for so long is not delayed by others, so it is forgotten, within the same time again.
const PRESENT: Duration = Duration::from_secs(1);

/// The longest wait of a request.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// Notes a request of a tenant that began at this time. Returns whether it should wait for its turn, with
/// [`request_turn`], so that those of other tenants wait less.
///
/// A thread that shares its core with others that are always ready waits for them with each step of a request, and the
/// more so the more requests it has. So while a thread that serves clients waits for its core for more than half of the
/// time, requests of a tenant with many of them wait. A tenant has many if it has more than one in 4 ms at the thread,
/// beyond four at once. None waits if no other tenant had a request at the thread in the last second, or two.
pub fn note_request(tenant: &Arc<str>, at: Instant) -> bool {
    if !is_paced() {
        return false;
    }
    REQUESTS.with_borrow_mut(|of_thread| {
        let (ready_time, requests) =
            of_thread.get_or_insert_with(|| (ReadyTime::of_this_thread(), Requests::default()));
        let ask = || ready_time.read().map(|ready| (Instant::now(), ready));
        requests.note(tenant, at, ask)
    })
}

/// Waits for a [permit](TickPermit) to begin a request, which the requests of tenants get one after another. At most for
/// 100 ms: then the request begins without one.
pub async fn request_turn(tenant: &Arc<str>) {
    let _late = timeout(WAIT_MAX, TickPermit::of_request(tenant)).await;
}

/// The requests of one thread. It reads no clock.
#[derive(Debug, Default)]
struct Requests {
    /// When the last one began.
    latest: Option<Instant>,
    core_wait: CoreWait,
    /// When the thread last waited long for its core.
    waited_long: Option<Instant>,
    tenants: Tenants,
}

impl Requests {
    /// Notes a request that began at this time, and returns whether it waits. `ask` is that of [`CoreWait::note`].
    fn note(
        &mut self,
        tenant: &Arc<str>,
        at: Instant,
        ask: impl FnOnce() -> Option<(Instant, Duration)>,
    ) -> bool {
        // One whose token was verified for long began before others that are noted.
        let at = self.latest.map_or(at, |latest| latest.max(at));
        self.latest = Some(at);
        self.core_wait.note(at, ask);
        if self.core_wait.is_long() {
            self.waited_long = Some(at);
        }
        let Some(last) = self.waited_long else { return false };
        if at.saturating_duration_since(last) >= PRESENT {
            (self.waited_long, self.tenants) = Default::default();
            return false;
        }
        // While requests wait, the thread gets more of its core. It still has to know who is there.
        self.tenants.note(tenant, at) && self.core_wait.is_long()
    }
}

/// The tenants that had requests.
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
    /// The end of the last request if each took [`APART`], one after the other. At most [`AT_ONCE`] count.
    end: Instant,
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
            self.all.insert(Arc::clone(tenant), TenantRequests { last: at, end: at });
        }
        let is_alone = self.all.len() == 1;
        self.all.get_mut(tenant).is_some_and(|of_it| of_it.note(at)) && !is_alone
    }
}

impl TenantRequests {
    /// Notes a request, and returns whether there are many.
    fn note(&mut self, at: Instant) -> bool {
        self.last = at;
        let (end, most) = (self.end.max(at) + APART, at + APART * AT_ONCE);
        self.end = end.min(most);
        end > most
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

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

    /// Notes requests of a busy tenant each millisecond and of a quiet one each 20 ms, from and to these milliseconds. The
    /// thread waits for its core for this part of the time. Returns which requests waited: busy, quiet.
    fn note(requests: &mut Requests, millis: Range<u64>, ready_percent: u32) -> (usize, usize) {
        let (busy, quiet): (Arc<str>, Arc<str>) = ("busy".into(), "quiet".into());
        let begin = *requests.latest.get_or_insert_with(Instant::now);
        let (first, mut waited) = (millis.start, (0, 0));
        for millis in millis {
            let at = begin + MS(millis - first);
            let ready = MS(10_000) + at.duration_since(begin) * ready_percent / 100;
            waited.0 += usize::from(requests.note(&busy, at, || Some((at, ready))));
            if millis % 20 == 0 {
                waited.1 += usize::from(requests.note(&quiet, at, || Some((at, ready))));
            }
        }
        waited
    }

    #[test]
    fn requests_wait_only_while_the_thread_waits_for_its_core() {
        let mut requests = Requests::default();
        assert_eq!(note(&mut requests, 0..1_000, 50), (0, 0));
        let (busy, quiet) = note(&mut requests, 1_000..2_000, 60);
        assert!(busy > 900 && quiet == 0, "{busy}, {quiet}");
        let (busy, quiet) = note(&mut requests, 2_000..2_500, 40);
        assert!(busy < 20 && quiet == 0, "{busy}, {quiet}");
        // Who was there is still known, so nothing has to be learnt when it waits again.
        assert_eq!(requests.tenants.all.len(), 2);
        assert_eq!(note(&mut requests, 2_500..4_000, 40), (0, 0));
        assert!(requests.tenants.all.is_empty());
    }

    #[test]
    fn a_request_that_is_noted_late_is_none_before_others() {
        let (mut requests, begin) = (Requests::default(), Instant::now());
        let tenant: Arc<str> = "a".into();
        for at in [begin, begin + MS(500), begin] {
            requests.note(&tenant, at, || None);
        }
        assert_eq!(requests.latest, Some(begin + MS(500)));
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
    async fn requests_get_the_permits_of_the_ticks() {
        let (tenant, began): (Arc<str>, _) = ("a".into(), tokio::time::Instant::now());
        for _ in 0..10 {
            request_turn(&tenant).await;
        }
        // Nothing pauses, and the clock of the runtime is advanced only if nothing is ready.
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_tenth_of_a_second_at_most() {
        let (tenant, began): (Arc<str>, _) = ("a".into(), tokio::time::Instant::now());
        withhold_permits();
        request_turn(&tenant).await;
        assert_eq!(began.elapsed(), WAIT_MAX);
    }
}

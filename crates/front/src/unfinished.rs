//! The memory of bodies that have not arrived completely, shared by the tenants.
//!
//! If a tenant has no memory left for a body, its own slowest body is cut: clients that send
//! nothing can then take memory from no client that sends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Context;
use std::time::Duration;

use budget::{Budget, Held};
use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use crate::collecting::Uncollected;
use crate::head_timeout::HeadProgress;
use crate::recent_rate::RecentRate;

/// The interval between two attempts to get memory. At most one body of a tenant is cut in it.
const RETRY: Duration = Duration::from_millis(20);

/// A younger body is not cut: its rate is not known yet.
const AGE_MIN: Duration = Duration::from_secs(1);

/// The unfinished bodies of all tenants.
#[derive(Debug)]
pub(crate) struct UnfinishedBodies {
    budget: Budget,
    /// Of the tenants that have such bodies, or had them last.
    tenants: RwLock<HashMap<Arc<str>, Arc<Mutex<TenantBodies>>>>,
}

/// The bodies of one tenant whose memory is counted.
#[derive(Debug, Default)]
struct TenantBodies {
    /// In no order. The tenant's memory bounds their number: each uses more than nothing.
    bodies: Vec<Arc<Progress>>,
    cut_at: Option<Instant>,
}

/// What others know of a body.
#[derive(Debug)]
struct Progress {
    rate: Mutex<RecentRate>,
    /// The node reads nothing of it, because the body waits for memory or a permit itself.
    is_waiting: AtomicBool,
    is_cut: AtomicBool,
    task: AtomicWaker,
}

impl Progress {
    fn rate(&self) -> MutexGuard<'_, RecentRate> {
        lock(&self.rate)
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// No code panics while it holds one of these locks, so the values are right in any case.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UnfinishedBodies {
    /// No bodies.
    pub(crate) fn new(budget: Budget) -> Self {
        Self { budget, tenants: RwLock::default() }
    }

    /// Begins to count the memory of a tenant's body.
    pub(crate) fn begin(&self, tenant: &Arc<str>) -> Counted {
        let others = self.of(tenant);
        let share = self.budget.share(tenant);
        let held = Held::nothing(&share.unwrap_or_else(|| self.budget.unnamed_share(tenant)));
        let progress = Arc::new(Progress {
            rate: Mutex::new(RecentRate::new(Instant::now())),
            is_waiting: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            task: AtomicWaker::new(),
        });
        lock(&others).bodies.push(Arc::clone(&progress));
        Counted { held, progress, others }
    }

    fn of(&self, tenant: &Arc<str>) -> Arc<Mutex<TenantBodies>> {
        let known = self.tenants.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(bodies) = known.get(tenant) {
            return Arc::clone(bodies);
        }
        drop(known);
        let mut known = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        // The names change with the settings.
        known.retain(|_, bodies| Arc::strong_count(bodies) > 1);
        Arc::clone(known.entry(Arc::clone(tenant)).or_default())
    }
}

impl TenantBodies {
    /// Cuts the slowest body; of equally slow ones the oldest.
    fn cut_slowest(&mut self, now: Instant) {
        if self.cut_at.is_some_and(|at| now.saturating_duration_since(at) < RETRY) {
            return;
        }
        self.cut_at = Some(now);
        let candidates = self.bodies.iter().filter(|body| {
            !body.is_waiting.load(Ordering::Acquire) && !body.is_cut.load(Ordering::Acquire)
        });
        let measured = candidates.filter_map(|body| {
            let (age, bytes_per_sec) = body.rate().measure(now);
            (age >= AGE_MIN).then_some((bytes_per_sec, std::cmp::Reverse(age), body))
        });
        if let Some((_, _, slowest)) = measured.min_by_key(|(rate, age, _)| (*rate, *age)) {
            slowest.cut();
        }
    }
}

/// A body whose memory is counted. Dropping it gives the memory back.
pub(crate) struct Counted {
    held: Held,
    progress: Arc<Progress>,
    others: Arc<Mutex<TenantBodies>>,
}

impl Counted {
    /// Counts bytes that have arrived. If the tenant has no memory for them, its slowest body is
    /// cut and this one waits, for at most `wait_left`, and until its connection is needed for another one.
    pub(crate) async fn grow(
        &mut self,
        bytes: usize,
        wait_left: &mut Duration,
        connection: Option<&HeadProgress>,
    ) -> Result<(), Uncollected> {
        if self.held.try_grow(bytes).is_err() {
            self.progress.is_waiting.store(true, Ordering::Release);
            let _waits = connection.map(HeadProgress::wait_for_room);
            while self.held.try_grow(bytes).is_err() {
                lock(&self.others).cut_slowest(Instant::now());
                *wait_left = wait_left.checked_sub(RETRY).ok_or(Uncollected::TooMany)?;
                tokio::time::sleep(RETRY).await;
                // Before it gets the memory: its connection would end in the middle of the request.
                if connection.is_some_and(HeadProgress::is_closing) {
                    return Err(Uncollected::TooMany);
                }
            }
        }
        self.progress.is_waiting.store(false, Ordering::Release);
        Ok(())
    }

    /// Notes that bytes were read, after all waits for them: they make up its rate.
    pub(crate) fn note_read(&self, bytes: usize) {
        self.progress.rate().add(Instant::now(), bytes as u64);
    }

    /// Waits for this. The body is not cut meanwhile, since the node reads nothing of it.
    pub(crate) async fn wait_for(&self, waited_for: impl Future<Output = ()>) {
        self.progress.is_waiting.store(true, Ordering::Release);
        waited_for.await;
        self.progress.is_waiting.store(false, Ordering::Release);
    }

    /// Was the body cut? If not, the task is woken when it is.
    pub(crate) fn poll_cut(&self, context: &mut Context<'_>) -> bool {
        self.progress.task.register(context.waker());
        self.progress.is_cut.load(Ordering::Acquire)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut others = lock(&self.others);
        if let Some(index) = others.bodies.iter().position(|body| Arc::ptr_eq(body, &self.progress))
        {
            others.bodies.swap_remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use budget::ShareLimits;

    use super::*;
    use crate::head_timeout::Rest;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_waits_is_refused_when_its_connection_is_needed() {
        let (bodies, connection) = (bodies(), HeadProgress::new_serving());
        let _first = begun(&bodies, "a", 80).await;
        let (mut waits, mut wait_left) = (bodies.begin(&"a".into()), Duration::from_secs(5));
        let begun = Instant::now();
        let grown = waits.grow(20, &mut wait_left, Some(&connection));
        let (grown, ()) = tokio::join!(grown, async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(connection.rest().is_some_and(|(rest, _)| rest == Rest::Body));
            connection.close();
        });
        assert_eq!(grown, Err(Uncollected::TooMany));
        assert!(begun.elapsed() < Duration::from_secs(2));
    }

    fn bodies() -> UnfinishedBodies {
        let limits = [("a", 100), ("b", 50)];
        let limits = limits.map(|(name, max)| (name.into(), ShareLimits { min: 20, max }));
        UnfinishedBodies::new(Budget::new(100, limits))
    }

    async fn begun(bodies: &UnfinishedBodies, tenant: &str, bytes: usize) -> Counted {
        let mut counted = bodies.begin(&tenant.into());
        counted.grow(bytes, &mut Duration::default(), None).await.unwrap();
        counted.note_read(bytes);
        counted
    }

    fn is_cut(body: &Counted) -> bool {
        body.progress.is_cut.load(Ordering::Acquire)
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_body_of_the_same_tenant_makes_room() {
        let bodies = bodies();
        let other = begun(&bodies, "b", 10).await;
        let oldest = begun(&bodies, "a", 20).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let silent = begun(&bodies, "a", 20).await;
        let mut fast = begun(&bodies, "a", 20).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        fast.grow(20, &mut Duration::default(), None).await.unwrap();
        fast.note_read(20);
        // 80 are not reserved for `b`.
        let mut newcomer = bodies.begin(&"a".into());
        let mut wait_left = Duration::from_secs(2);
        let release = async {
            tokio::time::sleep(RETRY / 2).await;
            assert!(is_cut(&oldest), "of two silent bodies the older one");
            drop(oldest);
        };
        let (grown, ()) = tokio::join!(newcomer.grow(20, &mut wait_left, None), release);
        assert_eq!((grown, wait_left), (Ok(()), Duration::from_secs(2) - RETRY));
        assert!(!is_cut(&silent) && !is_cut(&fast) && !is_cut(&other));
    }

    #[tokio::test(start_paused = true)]
    async fn a_young_or_waiting_body_is_not_cut() {
        let bodies = bodies();
        let mut first = begun(&bodies, "a", 80).await;
        let mut wait_left = Duration::from_millis(500);
        let mut second = bodies.begin(&"a".into());
        assert_eq!(second.grow(1, &mut wait_left, None).await, Err(Uncollected::TooMany));
        assert!(!is_cut(&first), "it is younger than a second");
        let (mut one, mut other) = (Duration::from_secs(4), Duration::from_secs(5));
        let grown = tokio::join!(first.grow(1, &mut one, None), second.grow(1, &mut other, None));
        assert_eq!(grown, (Err(Uncollected::TooMany), Err(Uncollected::TooMany)));
        assert!(!is_cut(&first));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_ends_gives_its_memory_back() {
        let bodies = bodies();
        drop(begun(&bodies, "a", 80).await);
        drop(begun(&bodies, "a", 80).await);
        assert!(lock(&bodies.of(&"a".into())).bodies.is_empty());
        drop(bodies.begin(&"c".into()));
        let known: Vec<_> = bodies.tenants.read().unwrap().keys().cloned().collect();
        assert_eq!(known, [Arc::<str>::from("c")]);
    }
}

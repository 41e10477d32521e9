//! Permits of a thread: one in each tick of its event loop.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Handle, Id};
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::FairQueue;
use crate::computing::is_computing;
use crate::pacing::Pacing;

thread_local! {
    /// The permits of this thread.
    static PERMITS: RefCell<Option<Permits>> = const { RefCell::new(None) };

    /// Whether they pause while other threads use its core.
    static IS_PACED: Cell<bool> = const { Cell::new(false) };
}

/// From now on, permits of this thread pause for up to 4 ms at a time while it has its core for less than half of the
/// time, and [requests wait](crate::request_turn) for them. For threads that serve clients, each with a runtime of its
/// own: the CPU time of a thread tells nothing of a task that changes threads.
pub fn pace_permits() {
    IS_PACED.set(true);
}

/// Whether permits of this thread pause while other threads use its core.
pub(crate) fn is_paced() -> bool {
    IS_PACED.get()
}

/// The permits of a thread, for one of its runtimes.
#[derive(Clone)]
struct Permits {
    runtime: Id,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The permit of this tick is given, and a task gives the next ones.
    is_given: bool,
    pacing: Pacing,
    /// When no permit was waited for any more.
    ended: Option<Instant>,
    /// Who waits. Bounded by the connections and links of the thread, and by the requests to issuers and authorization
    /// servers that run: each waits for one permit. One that gave its place up is removed at the tenant's next turn.
    queue: FairQueue<Asker, Weak<Waiting>>,
}

/// For what a tenant waits. What it has begun does not wait behind all of its requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Asker {
    Pieces(Arc<str>),
    Requests(Arc<str>),
}

/// One that waits.
#[derive(Debug)]
struct Waiting(Mutex<Given>);

#[derive(Debug)]
enum Given {
    NotYet(Waker),
    Yes,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for permits, one after the other. Dropping it gives its place up.
#[derive(Debug, Default)]
pub struct TickPermit(Option<Arc<Waiting>>);

impl TickPermit {
    /// Waits for a permit of this thread.
    pub async fn of(tenant: &Arc<str>) {
        let mut permit = Self::default();
        poll_fn(|context| permit.poll(tenant, context)).await;
    }

    /// Waits for a permit of this thread to begin a request of the tenant.
    pub(crate) async fn of_request(tenant: &Arc<str>) {
        let mut permit = Self::default();
        let asker = || Asker::Requests(Arc::clone(tenant));
        poll_fn(|context| permit.poll_as(asker, context)).await;
    }

    /// Waits for a permit of this thread if a piece has so many bytes that it needs one.
    pub async fn for_bytes(tenant: &Arc<str>, bytes: usize) {
        if bytes > crate::SHORT_BYTES {
            Self::of(tenant).await;
        }
    }

    /// Ready when a piece may be handled: at once, if no other one was handled in this tick or in a pause. The next
    /// poll waits for the next permit. Outside a runtime there are no ticks, and each poll is ready.
    pub fn poll(&mut self, tenant: &Arc<str>, context: &mut Context<'_>) -> Poll<()> {
        self.poll_as(|| Asker::Pieces(Arc::clone(tenant)), context)
    }

    fn poll_as(&mut self, asker: impl FnOnce() -> Asker, context: &mut Context<'_>) -> Poll<()> {
        if let Some(waiting) = &self.0 {
            if let Given::NotYet(waker) = &mut *lock(&waiting.0) {
                waker.clone_from(context.waker());
                return Poll::Pending;
            }
            self.0 = None;
            return Poll::Ready(());
        }
        let Some(permits) = here() else { return Poll::Ready(()) };
        let mut state = lock(&permits.state);
        if !state.is_given {
            state.is_given = true;
            drop(state);
            tokio::spawn(give(Giver(permits.state)));
            return Poll::Ready(());
        }
        let waiting = Arc::new(Waiting(Mutex::new(Given::NotYet(context.waker().clone()))));
        state.queue.add(asker(), Arc::downgrade(&waiting));
        self.0 = Some(waiting);
        Poll::Pending
    }
}

/// The permits of this thread and its current runtime.
fn here() -> Option<Permits> {
    let runtime = Handle::try_current().ok()?.id();
    PERMITS
        .try_with(|permits| {
            let mut permits = permits.borrow_mut();
            let known = permits.as_ref().filter(|permits| permits.runtime == runtime);
            known.cloned().unwrap_or_else(|| {
                permits.insert(Permits { runtime, state: Arc::default() }).clone()
            })
        })
        .ok()
}

/// Gives no permit of this thread from now on.
#[cfg(test)]
pub(crate) fn withhold_permits() {
    lock(&here().unwrap().state).is_given = true;
}

/// Gives a permit in each tick, until none is waited for.
async fn give(giver: Giver) {
    giver.begin();
    let mut busy = Busy::begin();
    loop {
        // All other tasks that are ready run, and sockets are polled. The thread does not sleep.
        yield_now().await;
        if giver.is_pause_due(&busy) {
            let pause = giver.next_pause(&busy);
            if !pause.is_zero() {
                sleep(pause).await;
            }
            busy = Busy::begin();
        }
        let Some(next) = giver.next() else {
            giver.end(&busy);
            return;
        };
        next.give();
    }
}

/// A time for which this thread gives permits and does not sleep.
struct Busy {
    began: Instant,
    /// The CPU time of the thread at the beginning. `None`: its permits are not paced.
    cpu: Option<Duration>,
}

impl Busy {
    fn begin() -> Self {
        Self { began: Instant::now(), cpu: IS_PACED.get().then(cpu_time) }
    }

    /// How long it has lasted, and the CPU time of that.
    fn times(&self) -> (Duration, Duration) {
        let wall = self.began.elapsed();
        (wall, self.cpu.map_or(wall, |begin| cpu_time().saturating_sub(begin)))
    }
}

/// The CPU time of this thread until now.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Gives the permits of a thread. If its runtime ends before, all get one.
struct Giver(Arc<Mutex<State>>);

impl Giver {
    fn begin(&self) {
        let mut state = lock(&self.0);
        if let Some(ended) = state.ended.take() {
            state.pacing.begin_after(ended.elapsed());
        }
    }

    fn end(&self, busy: &Busy) {
        self.note(busy);
        lock(&self.0).ended = Some(Instant::now());
    }

    fn is_pause_due(&self, busy: &Busy) -> bool {
        lock(&self.0).pacing.is_due(busy.began.elapsed())
    }

    /// How long no permit is given now.
    fn next_pause(&self, busy: &Busy) -> Duration {
        self.note(busy);
        lock(&self.0).pacing.next_pause(is_computing())
    }

    fn note(&self, busy: &Busy) {
        let (wall, cpu) = busy.times();
        lock(&self.0).pacing.add(wall, cpu);
    }

    /// The next one that still waits. If there is none, the permit is free.
    fn next(&self) -> Option<Arc<Waiting>> {
        let mut state = lock(&self.0);
        let next = state.queue.find_next(|waiting| waiting.upgrade());
        state.is_given = next.is_some();
        next
    }
}

impl Drop for Giver {
    fn drop(&mut self) {
        while let Some(next) = self.next() {
            next.give();
        }
    }
}

impl Waiting {
    fn give(&self) {
        let given = std::mem::replace(&mut *lock(&self.0), Given::Yes);
        if let Given::NotYet(waker) = given {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use rustix::thread::CpuSet;
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_time().build().unwrap()
    }

    #[test]
    fn a_thread_has_one_turn_in_each_tick_and_tenants_take_turns() {
        runtime().block_on(async {
            let given: Arc<Mutex<Vec<usize>>> = Arc::default();
            let tasks: Vec<_> = (0..100)
                .map(|number| {
                    // The first tenant asks for nearly all permits, and before the others.
                    let tenant: Arc<str> = if number < 90 { "a" } else { "b" }.into();
                    let given = Arc::clone(&given);
                    tokio::spawn(async move {
                        TickPermit::of(&tenant).await;
                        lock(&given).push(number);
                    })
                })
                .collect();
            let mut ticks = 0;
            while lock(&given).len() < 100 {
                let before = lock(&given).len();
                yield_now().await;
                ticks += 1;
                assert!(
                    lock(&given).len() <= before + 2,
                    "{} in a tick",
                    lock(&given).len() - before
                );
                assert!(ticks < 1_000);
            }
            for task in tasks {
                task.await.unwrap();
            }
            assert!(ticks >= 50, "{ticks} ticks");
            let last_of_b = lock(&given).iter().rposition(|number| *number >= 90).unwrap();
            assert!(last_of_b <= 21, "{last_of_b} permits until the second tenant had its ten");
        });
    }

    #[test]
    fn pieces_of_a_tenant_do_not_wait_behind_its_requests() {
        runtime().block_on(async {
            let (tenant, given): (Arc<str>, Arc<Mutex<Vec<&str>>>) = ("a".into(), Arc::default());
            for number in 0..60 {
                let (tenant, given) = (Arc::clone(&tenant), Arc::clone(&given));
                tokio::spawn(async move {
                    let what = if number < 50 {
                        TickPermit::of_request(&tenant).await;
                        "request"
                    } else {
                        TickPermit::of(&tenant).await;
                        "piece"
                    };
                    lock(&given).push(what);
                });
            }
            while lock(&given).len() < 60 {
                yield_now().await;
            }
            let last_piece = lock(&given).iter().rposition(|what| *what == "piece").unwrap();
            assert!(last_piece <= 21, "the last of ten pieces had permit {last_piece}");
        });
    }

    #[test]
    fn permits_pause_while_something_is_computed() {
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let computed = crate::compute(&"a".into(), move || {
            let _ended = ends.recv();
        });
        // Pauses take no time here: the clock of the runtime is advanced.
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        let (busy, paused) = runtime.block_on(async {
            let (tenant, began, clock) = ("a".into(), Instant::now(), tokio::time::Instant::now());
            while began.elapsed() < Duration::from_millis(300) {
                TickPermit::of(&tenant).await;
            }
            (began.elapsed(), clock.elapsed())
        });
        // 1 ms after each 2 ms at most. A timer may be 1 ms late.
        let most = busy / 2 + Duration::from_millis(1);
        assert!(!paused.is_zero() && paused <= most, "{paused:?} in {busy:?}");
        end.send(()).unwrap();
        runtime.block_on(computed);
    }

    #[test]
    fn permits_pause_while_other_threads_use_the_core() {
        const OTHERS: usize = 3;
        let core = rustix::thread::sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|number| core.is_set(*number)).unwrap();
        let mut core = CpuSet::new();
        core.set(first);
        rustix::thread::sched_setaffinity(None, &core).unwrap();
        let is_over = AtomicBool::new(false);
        let pauses = std::thread::scope(|scope| {
            // They stay on the core of this thread.
            (0..OTHERS).for_each(|_| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            });
            let pauses = async |time: Duration| {
                let (tenant, begin) = ("a".into(), Instant::now());
                let mut pause = Duration::ZERO;
                while pause.is_zero() && begin.elapsed() < time {
                    TickPermit::of(&tenant).await;
                    pause = lock(&here().unwrap().state).pacing.pause();
                }
                !pause.is_zero()
            };
            let pauses = runtime().block_on(async {
                let without_pacing = pauses(Duration::from_millis(200)).await;
                pace_permits();
                (without_pacing, pauses(Duration::from_secs(10)).await)
            });
            is_over.store(true, Ordering::Relaxed);
            pauses
        });
        assert_eq!(pauses, (false, true));
    }

    #[test]
    fn one_that_does_not_wait_any_more_delays_no_other() {
        runtime().block_on(async {
            let tenant: Arc<str> = "a".into();
            let taken = Arc::new(AtomicUsize::new(0));
            for number in 0..50 {
                let (tenant, taken) = (Arc::clone(&tenant), Arc::clone(&taken));
                tokio::spawn(async move {
                    let mut permit = TickPermit::default();
                    if number % 10 == 9 {
                        let polled =
                            poll_fn(|context| Poll::Ready(permit.poll(&tenant, context))).await;
                        assert!(polled.is_pending());
                        return;
                    }
                    poll_fn(|context| permit.poll(&tenant, context)).await;
                    taken.fetch_add(1, Ordering::Relaxed);
                });
            }
            for _ in 0..200 {
                yield_now().await;
            }
            assert_eq!(taken.load(Ordering::Relaxed), 45);
            // The permit is free again.
            let mut permit = TickPermit::default();
            let polled = poll_fn(|context| Poll::Ready(permit.poll(&tenant, context))).await;
            assert!(polled.is_ready());
        });
    }

    #[test]
    fn a_runtime_that_ends_leaves_the_next_one_its_turns() {
        let tenant: Arc<str> = "a".into();
        let first = runtime();
        first.block_on(TickPermit::of(&tenant));
        // The first runtime still has the task that would free the permit.
        runtime().block_on(async {
            TickPermit::of(&tenant).await;
            TickPermit::of(&tenant).await;
        });
        drop(first);
    }

    #[test]
    fn without_a_runtime_nothing_is_waited_for() {
        let (tenant, mut context) = ("a".into(), Context::from_waker(Waker::noop()));
        let mut permit = TickPermit::default();
        assert!(permit.poll(&tenant, &mut context).is_ready());
        assert!(permit.poll(&tenant, &mut context).is_ready());
    }
}

//! Threads for what cannot be done in pieces. They have a lower priority than the workers.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread;

use tokio::sync::oneshot;

use crate::{FairQueue, is_long};

/// How much lower the priority of these threads is than that of the process, in steps of `nice`. A worker
/// that is always busy leaves them about a tenth of a core that they share.
const NICE: i32 = 10;

/// What is computed, on a thread of its own.
type Job = Box<dyn FnOnce() + Send>;

/// Whether one of the threads computes.
pub(crate) fn is_computing() -> bool {
    let state = THREADS.lock();
    state.started > state.idle
}

/// The threads of the process: at most one for each core.
static THREADS: LazyLock<Threads> = LazyLock::new(|| {
    let most = thread::available_parallelism().map_or(1, usize::from);
    Threads { most, state: Mutex::default(), added: Condvar::new() }
});

struct Threads {
    most: usize,
    state: Mutex<State>,
    /// Wakes a thread that waits for a job.
    added: Condvar,
}

#[derive(Default)]
struct State {
    /// The jobs that wait. Each link, each request of a client, each call of a peer and each request to an issuer has at
    /// most one.
    jobs: FairQueue<Arc<str>, Job>,
    started: usize,
    idle: usize,
}

impl Threads {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&'static self, tenant: &Arc<str>, job: Job) {
        let mut state = self.lock();
        state.jobs.add(Arc::clone(tenant), job);
        if state.idle > 0 {
            drop(state);
            self.added.notify_one();
            return;
        }
        if state.started == self.most {
            return;
        }
        state.started += 1;
        drop(state);
        let thread = thread::Builder::new().name("long-messages".into());
        if let Err(error) = thread.spawn(|| self.run()) {
            self.lock().started -= 1;
            tracing::error!(%error, "a thread for long messages was not started");
            self.run_here_without_threads();
        }
    }

    /// Runs jobs as long as the process lives.
    fn run(&self) {
        if let Err(error) = rustix::process::nice(NICE) {
            tracing::warn!(%error, "the priority of a thread for long messages was not lowered");
        }
        let mut state = self.lock();
        loop {
            state = match state.jobs.take_next() {
                Some(job) => {
                    drop(state);
                    perform(job);
                    self.lock()
                }
                None => {
                    state.idle += 1;
                    let mut woken = self.added.wait(state).unwrap_or_else(PoisonError::into_inner);
                    woken.idle -= 1;
                    woken
                }
            };
        }
    }

    /// Runs the jobs on this thread if there is no other.
    fn run_here_without_threads(&self) {
        loop {
            let mut state = self.lock();
            if state.started > 0 {
                return;
            }
            let Some(job) = state.jobs.take_next() else { return };
            drop(state);
            perform(job);
        }
    }
}

/// Performs a job. What it drops may panic, if nothing waits for its result: the thread stays.
fn perform(job: Job) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!("a result for which nothing waits panicked when it was dropped");
    }
}

/// The result of a computation. Dropping it gives up a computation that has not begun.
#[derive(Debug)]
pub struct Computing<T>(oneshot::Receiver<thread::Result<T>>);

/// Computes something for a tenant, on a thread with a lower priority. Tenants get these threads one
/// after another. A panic of `work` is one of the task that waits for the result.
pub fn compute<T: Send + 'static>(
    tenant: &Arc<str>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Computing<T> {
    let (sender, receiver) = oneshot::channel();
    let job = move || {
        if !sender.is_closed() {
            let _is_received = sender.send(catch_unwind(AssertUnwindSafe(work)));
        }
    };
    THREADS.add(tenant, Box::new(job));
    Computing(receiver)
}

/// Computes something that takes as long as its input of so many bytes: on this thread, or as [`compute`]
/// does if the input is long.
pub async fn compute_for_bytes<T: Send + 'static>(
    tenant: &Arc<str>,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    match is_long(bytes) {
        false => work(),
        true => compute(tenant, work).await,
    }
}

impl<T> Future for Computing<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match Pin::new(&mut self.0).poll(context) {
            Poll::Ready(Ok(Ok(computed))) => Poll::Ready(computed),
            Poll::Ready(Ok(Err(panic))) => resume_unwind(panic),
            // Each job sends its result, unless this receiver is closed.
            Poll::Ready(Err(lost)) => resume_unwind(Box::new(lost)),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn tenant(name: &str) -> Arc<str> {
        name.into()
    }

    #[tokio::test]
    async fn what_is_computed_is_returned_from_another_thread_of_lower_priority() {
        let here = thread::current().id();
        let (there, nice) =
            compute(&tenant("a"), || (thread::current().id(), rustix::process::nice(0))).await;
        assert_ne!(here, there);
        assert_eq!(nice, Ok(rustix::process::nice(0).unwrap() + NICE));
    }

    #[tokio::test]
    async fn a_panic_is_one_of_the_task_that_waits() {
        let failed = tokio::spawn(compute(&tenant("a"), || panic!("of a test"))).await;
        assert!(failed.is_err_and(|error| error.is_panic()));
        assert_eq!(compute(&tenant("a"), || 1).await, 1);
    }

    #[tokio::test]
    async fn tenants_take_turns_and_what_nothing_waits_for_is_not_computed() {
        // Every thread waits for the test.
        let (held, holds): (Vec<_>, Vec<_>) =
            (0..THREADS.most).map(|_| mpsc::channel::<()>()).unzip();
        let (begun, has_begun) = mpsc::channel();
        let busy: Vec<_> = holds
            .into_iter()
            .map(|hold| {
                let begun = begun.clone();
                compute(&tenant("busy"), move || {
                    begun.send(()).unwrap();
                    let _ends = hold.recv();
                })
            })
            .collect();
        busy.iter().for_each(|_| has_begun.recv().unwrap());
        let (done, order) = mpsc::channel();
        let add = |name: &str| {
            let (name, done) = (name.to_owned(), done.clone());
            compute(&tenant(&name.clone()), move || done.send(name).unwrap())
        };
        let waiting = ["a", "a", "a", "a", "b"].map(add);
        drop(add("c"));
        // One thread goes on, so the jobs run one after another.
        let mut held = held.into_iter();
        drop(held.next());
        for waits in waiting {
            waits.await;
        }
        assert_eq!(order.try_iter().collect::<Vec<_>>(), ["a", "b", "a", "a", "a"]);
        drop(held);
        for busy in busy {
            busy.await;
        }
    }
}

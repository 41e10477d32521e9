//! What waits for the records of one thread, and the task of that thread that lets it go on.

use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

/// The record of a call could not be written in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audit record of the request cannot be written now; try again later")]
pub struct Held;

/// What goes on when a record is written.
pub trait WaitsForRecord: Send + Sync {
    /// The record is written, or it was not in time. Called once, by the task that calls
    /// [`crate::Recorder::perform`].
    fn go_on(&self, result: Result<(), Held>);
}

/// How something goes on.
pub(crate) enum Then {
    /// A task is woken, on any thread.
    Wake(Waker),
    /// The task of the thread does it.
    GoOn(Arc<dyn WaitsForRecord>),
}

/// One that waits.
struct Waiter {
    batch: u64,
    until: Instant,
    then: Then,
}

/// What waits: each at most for as long as calls are held.
#[derive(Default)]
pub(crate) struct Waiters {
    waiting: Vec<Waiter>,
    task: ThreadTask,
}

/// The task of the thread that lets calls go on.
#[derive(Default)]
enum ThreadTask {
    /// There is none yet.
    #[default]
    None,
    Waits(Waker),
    /// It was woken, and will look at everything.
    Woken,
}

/// What is to be woken.
pub(crate) enum Wakes {
    /// The thread has no task.
    NoTask,
    /// The task was woken before.
    Nothing,
    /// The task of the thread.
    Task(Waker),
}

impl Waiters {
    /// Lets something go on when this batch is written, or at this time.
    pub(crate) fn add(&mut self, batch: u64, until: Instant, then: Then) {
        self.waiting.push(Waiter { batch, until, then });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The task of this waker looks at everything now, and is woken when there is more.
    pub(crate) fn set_task(&mut self, waker: &Waker) {
        match &mut self.task {
            ThreadTask::Waits(known) => known.clone_from(waker),
            task => *task = ThreadTask::Waits(waker.clone()),
        }
    }

    /// What is to be woken, without a lock, so that the task looks at everything.
    pub(crate) fn wake_task(&mut self) -> Wakes {
        match mem::replace(&mut self.task, ThreadTask::Woken) {
            ThreadTask::None => {
                self.task = ThreadTask::None;
                Wakes::NoTask
            }
            ThreadTask::Woken => Wakes::Nothing,
            ThreadTask::Waits(waker) => Wakes::Task(waker),
        }
    }

    /// Moves what is over into the list: its batch is written, or its time is over. With whether the
    /// batch is written.
    pub(crate) fn take_over(
        &mut self,
        written: u64,
        now: Instant,
        into: &mut Vec<(Then, Result<(), Held>)>,
    ) {
        let is_over = |waiter: &mut Waiter| waiter.batch <= written || waiter.until <= now;
        into.extend(self.waiting.extract_if(.., is_over).map(|waiter| {
            let result = if waiter.batch <= written { Ok(()) } else { Err(Held) };
            (waiter.then, result)
        }));
    }

    /// The tasks to wake whose batch is written, of a thread without a task of its own.
    pub(crate) fn take_wakers(&mut self, written: u64) -> Vec<Waker> {
        let is_written =
            |waiter: &mut Waiter| waiter.batch <= written && matches!(waiter.then, Then::Wake(_));
        let over = self.waiting.extract_if(.., is_written);
        over.filter_map(|waiter| match waiter.then {
            Then::Wake(waker) => Some(waker),
            Then::GoOn(_) => None,
        })
        .collect()
    }
}

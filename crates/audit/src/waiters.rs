//! The tasks that wait for the records of one thread, and the task of that thread that lets them go on.

use std::mem;
use std::task::Waker;
use std::time::Instant;

/// The record of a call could not be written in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audit record of the request cannot be written now; try again later")]
pub struct Held;

/// One that waits.
struct Waiter {
    batch: u64,
    until: Instant,
    waker: Waker,
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
    /// Wakes a task when this batch is written, or at this time.
    pub(crate) fn add(&mut self, batch: u64, until: Instant, waker: Waker) {
        self.waiting.push(Waiter { batch, until, waker });
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

    /// Removes the tasks whose batch is written, or whose time is over. Without a time, only the former.
    pub(crate) fn take_over(&mut self, written: u64, now: Option<Instant>) -> Vec<Waker> {
        let is_over = |waiter: &mut Waiter| {
            waiter.batch <= written || now.is_some_and(|now| waiter.until <= now)
        };
        self.waiting.extract_if(.., is_over).map(|waiter| waiter.waker).collect()
    }
}

//! Sends the commands of one event-loop tick of a thread together, as one pipeline.
//!
//! In one tick, a thread handles the events of all its connections, and each of their sessions
//! may send a command. The connection to Redis runs on another thread, which would wake up and
//! write once for each command. So commands wait for the end of the tick ([`tick`]).

use std::cell::RefCell;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tick::Deferred;
use tokio::sync::oneshot;

use super::answer::unavailable;
use super::client::{Answer, Call, Client};
use crate::Error;

thread_local! {
    /// The batches of this thread, one for each client.
    static BATCHES: RefCell<Vec<Arc<Batch>>> = const { RefCell::new(Vec::new()) };
}

/// Receives the answer to a command.
type Asker = oneshot::Sender<Result<Answer, Error>>;

/// The commands of one thread to one client that are sent at the end of its tick. The number of
/// callers bounds it: a caller waits for an answer before it sends another command.
struct Batch {
    client: Weak<Client>,
    calls: Mutex<Vec<(Call, Asker)>>,
}

impl Batch {
    /// The calling thread's batch for `client`.
    fn of(client: &Arc<Client>) -> Arc<Self> {
        BATCHES.with_borrow_mut(|batches| {
            let known = batches.iter().find(|batch| batch.client.as_ptr() == Arc::as_ptr(client));
            if let Some(batch) = known {
                return Arc::clone(batch);
            }
            batches.retain(|batch| batch.client.strong_count() > 0);
            let batch = Arc::new(Self { client: Arc::downgrade(client), calls: Mutex::default() });
            batches.push(Arc::clone(&batch));
            batch
        })
    }

    fn add(&self, call: Call, asker: Asker) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push((call, asker));
    }

    fn take(&self) -> Vec<(Call, Asker)> {
        mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Deferred for Batch {
    fn perform(&self) {
        let calls = self.take();
        // If the client is gone, no caller waits for an answer.
        if let Some(client) = self.client.upgrade()
            && !calls.is_empty()
        {
            // A runtime that is shutting down drops the future, and its callers get an error.
            tokio::spawn(send(client, calls));
        }
    }

    /// The runtime ended before the tick did. Drops the commands, so that no caller waits.
    fn perform_elsewhere(&self) {
        drop(self.take());
    }
}

async fn send(client: Arc<Client>, calls: Vec<(Call, Asker)>) {
    let (calls, mut askers): (Vec<_>, Vec<_>) =
        calls.into_iter().map(|(call, asker)| (call, Some(asker))).unzip();
    let tell = |place: usize, answer| {
        if let Some(asker) = askers[place].take() {
            // A caller that is gone needs no answer: every command is safe to repeat.
            let _ = asker.send(answer);
        }
    };
    client.perform_each(calls, tell).await;
}

impl Client {
    /// Executes one command. It is sent together with the other commands of this thread's tick.
    /// On a multi-threaded runtime, which has no ticks, it is sent alone.
    pub(super) async fn call(self: &Arc<Self>, call: Call) -> Result<Answer, Error> {
        if !tick::install() {
            let mut answers = self.perform(vec![call]).await;
            return answers.pop().unwrap_or_else(|| Err(unavailable("redis gave no answer")));
        }
        let (asker, answer) = oneshot::channel();
        let batch = Batch::of(self);
        batch.add(call, asker);
        let batch: Arc<dyn Deferred> = batch;
        tick::defer(&batch);
        drop(batch);
        answer.await.unwrap_or_else(|_| Err(unavailable("the runtime of the caller has ended")))
    }
}

//! Sends together what one thread asks for in one of its turns.
//!
//! A thread that serves clients takes up what has arrived at all of its connections before
//! it waits again, and each of their sessions may have something to be written. The
//! connection to Redis is kept on another thread: told of each call, that thread would wake
//! for each and write each by itself. So what is asked waits for the end of the turn, which
//! is no time, and goes out as one pipeline.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;

use super::answer::unavailable;
use super::client::{Answer, Call, Client};
use crate::Error;

thread_local! {
    /// What is to be sent at the end of this thread's turn: one batch for each client that
    /// it ever asked, the sent ones among them until the next call replaces them.
    static OPEN: RefCell<Vec<(usize, Arc<Batch>)>> = const { RefCell::new(Vec::new()) };
}

/// Who waits for an answer.
type Asker = oneshot::Sender<Result<Answer, Error>>;

/// The calls of one turn; none when it is over. Bounded by those who ask: none asks again
/// before it was answered.
struct Batch(Mutex<Option<Vec<(Call, Asker)>>>);

impl Batch {
    /// Gives the call back where the turn is over.
    #[allow(clippy::result_large_err, reason = "a call that is not taken is given back as it came")]
    fn add(&self, call: Call, asker: Asker) -> Result<(), (Call, Asker)> {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(calls) => {
                calls.push((call, asker));
                Ok(())
            }
            None => Err((call, asker)),
        }
    }

    fn close(&self) -> Vec<(Call, Asker)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }
}

/// The end of a turn.
struct End {
    client: Arc<Client>,
    batch: Arc<Batch>,
}

impl End {
    async fn send(self) {
        let (calls, mut askers): (Vec<_>, Vec<_>) =
            self.batch.close().into_iter().map(|(call, asker)| (call, Some(asker))).unzip();
        let tell = |place: usize, answer| {
            if let Some(asker) = askers[place].take() {
                // A caller that is gone may send its call again: every call is safe to repeat.
                let _ = asker.send(answer);
            }
        };
        self.client.perform_each(calls, tell).await;
    }
}

impl Drop for End {
    /// The runtime may end before the tick does. Drops the calls, so that no caller waits.
    fn drop(&mut self) {
        drop(self.batch.close());
    }
}

impl Client {
    /// One call's answer. It goes out with all that the thread asks in this turn.
    pub(super) async fn call(self: &Arc<Self>, call: Call) -> Result<Answer, Error> {
        match self.hand_in(call) {
            Ok(answer) => answer
                .await
                .unwrap_or_else(|_| Err(unavailable("the runtime that asked redis has ended"))),
            Err(call) => {
                let mut answers = self.perform(vec![call]).await;
                answers.pop().unwrap_or_else(|| Err(unavailable("redis gave no answer")))
            }
        }
    }

    /// Gives the call back where there are no turns: on a runtime of several threads.
    #[allow(clippy::result_large_err, reason = "a call that is not taken is given back as it came")]
    fn hand_in(
        self: &Arc<Self>,
        call: Call,
    ) -> Result<oneshot::Receiver<Result<Answer, Error>>, Call> {
        let runtime = match Handle::try_current() {
            Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread => runtime,
            _ => return Err(call),
        };
        let (asker, answer) = oneshot::channel();
        let client = Arc::as_ptr(self).addr();
        OPEN.with_borrow_mut(|open| {
            let (mut call, mut asker) = (call, asker);
            if let Some(at) = open.iter().position(|(whose, _)| *whose == client) {
                match open[at].1.add(call, asker) {
                    Ok(()) => return,
                    Err(back) => (call, asker) = back,
                }
                open.swap_remove(at);
            }
            let batch = Arc::new(Batch(Mutex::new(Some(vec![(call, asker)]))));
            open.push((client, Arc::clone(&batch)));
            // Behind everything that is ready to run now.
            runtime.spawn(End { client: Arc::clone(self), batch }.send());
        });
        Ok(answer)
    }
}

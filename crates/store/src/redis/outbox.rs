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
use super::client::{Client, RedisAnswer};
use super::command::RedisCommand;
use crate::Error;

thread_local! {
    /// The batches of this thread, one for each client.
    static BATCHES: RefCell<Vec<Arc<TickBatch>>> = const { RefCell::new(Vec::new()) };
}

/// Receives the answer to a command.
type AnswerSender = oneshot::Sender<Result<RedisAnswer, Error>>;

/// The commands of one thread to one client that are sent at the end of its tick. The number of
/// callers bounds it: a caller waits for an answer before it sends another command.
struct TickBatch {
    client: Weak<Client>,
    commands: Mutex<Vec<(RedisCommand, AnswerSender)>>,
}

impl TickBatch {
    /// The calling thread's batch for `client`.
    fn of_client(client: &Arc<Client>) -> Arc<Self> {
        BATCHES.with_borrow_mut(|batches| {
            let known = batches.iter().find(|batch| batch.client.as_ptr() == Arc::as_ptr(client));
            if let Some(batch) = known {
                return Arc::clone(batch);
            }
            batches.retain(|batch| batch.client.strong_count() > 0);
            let batch =
                Arc::new(Self { client: Arc::downgrade(client), commands: Mutex::default() });
            batches.push(Arc::clone(&batch));
            batch
        })
    }

    fn push(&self, command: RedisCommand, sender: AnswerSender) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push((command, sender));
    }

    fn take_commands(&self) -> Vec<(RedisCommand, AnswerSender)> {
        mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Deferred for TickBatch {
    fn perform(&self) {
        let commands = self.take_commands();
        // If the client is gone, no caller waits for an answer.
        if let Some(client) = self.client.upgrade()
            && !commands.is_empty()
        {
            // A runtime that is shutting down drops the future, and its callers get an error.
            tokio::spawn(execute_batch(client, commands));
        }
    }

    /// The runtime ended before the tick did. Drops the commands, so that no caller waits.
    fn perform_elsewhere(&self) {
        drop(self.take_commands());
    }
}

async fn execute_batch(client: Arc<Client>, commands: Vec<(RedisCommand, AnswerSender)>) {
    let (commands, mut senders): (Vec<_>, Vec<_>) =
        commands.into_iter().map(|(command, sender)| (command, Some(sender))).unzip();
    let on_answer = |place: usize, answer| {
        if let Some(sender) = senders[place].take() {
            // A caller that is gone needs no answer: every command is safe to repeat.
            let _ = sender.send(answer);
        }
    };
    client.execute_each(commands, on_answer).await;
}

impl Client {
    /// Executes one command. It is sent together with the other commands of this thread's tick.
    /// A long one is sent alone, and on a multi-threaded runtime, which has no ticks, each is.
    pub(super) async fn execute(
        self: &Arc<Self>,
        command: RedisCommand,
    ) -> Result<RedisAnswer, Error> {
        if command.is_long() {
            return self.execute_there(command).await;
        }
        if !tick::install() {
            return self.execute_alone(command).await;
        }
        let (sender, answer) = oneshot::channel();
        let batch = TickBatch::of_client(self);
        batch.push(command, sender);
        let batch: Arc<dyn Deferred> = batch;
        tick::defer(&batch);
        drop(batch);
        answer.await.unwrap_or_else(|_| Err(unavailable("the runtime of the caller has ended")))
    }
}

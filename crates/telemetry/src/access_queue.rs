//! The bounded queue between the threads that serve clients and the thread that writes the access
//! log.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::ExchangeRecord;

/// The queue. A thread that adds never waits for the writer: at the bound the record is left out.
#[derive(Debug)]
pub(crate) struct AccessQueue {
    capacity: usize,
    state: Mutex<State>,
    added: Condvar,
}

#[derive(Debug, Default)]
struct State {
    records: Vec<ExchangeRecord>,
    /// Whether the writer waits for the next record: only then does adding cost a wake-up.
    is_waiting: bool,
    /// Whether the writer is to continue without a record.
    is_woken: bool,
}

impl AccessQueue {
    /// A queue for at most `capacity` records. Its memory is reserved at once.
    pub(crate) fn new(capacity: usize) -> Self {
        let records = Vec::with_capacity(capacity);
        let state = State { records, ..State::default() };
        Self { capacity, state: Mutex::new(state), added: Condvar::new() }
    }

    /// Adds a record. Returns whether there was room.
    pub(crate) fn add(&self, record: ExchangeRecord) -> bool {
        let mut state = self.lock();
        if state.records.len() >= self.capacity {
            return false;
        }
        state.records.push(record);
        let wakes = std::mem::take(&mut state.is_waiting);
        drop(state);
        if wakes {
            self.added.notify_one();
        }
        true
    }

    /// Makes the writer continue, though there may be no record.
    pub(crate) fn wake(&self) {
        self.lock().is_woken = true;
        self.added.notify_one();
    }

    /// Waits until there is a record, [`AccessQueue::wake`] was called, or the time is over.
    pub(crate) fn wait(&self, time_max: Duration) {
        let mut state = self.lock();
        state.is_waiting = true;
        let waits = |state: &mut State| state.records.is_empty() && !state.is_woken;
        let waiting = self.added.wait_timeout_while(state, time_max, waits);
        state = waiting.unwrap_or_else(PoisonError::into_inner).0;
        state.is_waiting = false;
        state.is_woken = false;
    }

    /// Takes all records. The list must be empty; its memory is used for the next ones.
    pub(crate) fn take_all(&self, records: &mut Vec<ExchangeRecord>) {
        records.reserve(self.capacity);
        std::mem::swap(&mut self.lock().records, records);
    }

    /// No code panics under this lock, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

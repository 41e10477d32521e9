//! What the recorders of a node and its writer share.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use telemetry::{Readiness, TenantLabels};

use crate::bounds::{Amount, Level, Share};
use crate::line;
use crate::metrics::QUEUE_BYTES;
use crate::output::Output;
use crate::queue::Queue;
use crate::sink::Sink;
use crate::{Settings, WhenFull};

/// Shown by `/readyz` while records cannot be written.
const FAILING: &str = "audit records cannot be written; see the log";

/// The state of one node's audit log.
pub(crate) struct Shared {
    pub(crate) node: Box<str>,
    /// The digits of a number that differs from that of every other process.
    pub(crate) process: [u8; 16],
    pub(crate) settings: Settings,
    pub(crate) total: Level,
    labels: TenantLabels,
    shares: Mutex<HashMap<Arc<str>, Arc<Share>>>,
    queues: Mutex<Vec<Arc<Queue>>>,
    queues_made: AtomicU64,
    signal: Mutex<Signal>,
    signalled: Condvar,
    closed: Condvar,
    /// Whether the last write failed.
    is_failing: AtomicBool,
    /// Whether a record waited longer than calls are held, and none was written since.
    is_late: AtomicBool,
    /// Whether a record was left out since the last report.
    has_left_out: AtomicBool,
    readiness: Mutex<Option<Readiness>>,
    /// A batch is taken from its queue under this lock, so that batches are written in their order. `None`:
    /// records are only collected.
    pub(crate) output: Mutex<Option<Output>>,
}

/// What the writer waits for.
#[derive(Debug, Default)]
struct Signal {
    /// Records for which calls wait.
    has_work: bool,
    /// Records for which nothing waits.
    has_other_work: bool,
    waits: Waits,
    is_closing: bool,
    is_closed: bool,
}

/// How the writer waits: only if it does can work cost a wake-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Waits {
    #[default]
    No,
    /// It will soon look by itself for records for which nothing waits.
    Shortly,
    ForLong,
}

/// How long a record for which nothing waits may wait for others, with which it is written.
const TOGETHER: Duration = Duration::from_millis(10);

/// What the writer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Write,
    /// Write what is there, and end.
    Close,
}

impl Shared {
    pub(crate) fn new(
        settings: &Settings,
        node: &str,
        labels: TenantLabels,
        sink: Option<Sink>,
    ) -> Self {
        // The standard library seeds it at random.
        let process = line::hex_digits(RandomState::new().build_hasher().finish());
        Self {
            node: node.into(),
            process,
            settings: settings.clone(),
            total: Level::default(),
            labels,
            shares: Mutex::default(),
            queues: Mutex::default(),
            queues_made: AtomicU64::new(0),
            signal: Mutex::default(),
            signalled: Condvar::new(),
            closed: Condvar::new(),
            is_failing: AtomicBool::new(false),
            is_late: AtomicBool::new(false),
            has_left_out: AtomicBool::new(false),
            readiness: Mutex::default(),
            output: Mutex::new(sink.map(Output::new)),
        }
    }

    /// How long a call waits for its record.
    pub(crate) fn hold(&self) -> Duration {
        Duration::from_millis(self.settings.hold_ms)
    }

    /// The bound of a tenant, and that of all.
    pub(crate) fn maxima(&self) -> (Amount, Amount) {
        let settings = &self.settings;
        let (bytes, records) = (settings.tenant_queue_bytes_max, settings.tenant_queue_records_max);
        let (all_bytes, all_records) = (settings.queue_bytes_max, settings.queue_records_max);
        (Amount { bytes, records }, Amount { bytes: all_bytes, records: all_records })
    }

    /// The share of a tenant.
    pub(crate) fn share(&self, tenant: &Arc<str>) -> Arc<Share> {
        let mut shares = lock(&self.shares);
        let new = || Arc::new(Share::new(Arc::clone(tenant), self.labels.label(tenant)));
        Arc::clone(shares.entry(Arc::clone(tenant)).or_insert_with(new))
    }

    /// Every share that there is.
    pub(crate) fn all_shares(&self) -> Vec<Arc<Share>> {
        lock(&self.shares).values().cloned().collect()
    }

    /// A queue for one thread.
    pub(crate) fn add_queue(self: &Arc<Self>) -> Arc<Queue> {
        let number = self.queues_made.fetch_add(1, Ordering::Relaxed);
        let queue = Queue::new(Arc::clone(self), number);
        lock(&self.queues).push(Arc::clone(&queue));
        queue
    }

    /// Copies the list of all queues, one for each thread that serves clients.
    pub(crate) fn queues(&self, into: &mut Vec<Arc<Queue>>) {
        into.clear();
        into.extend(lock(&self.queues).iter().cloned());
    }

    /// Tells the writer that there are records. If no call waits for them, they are written within
    /// 10 ms, with others: at a busy node they cost no wake-up.
    pub(crate) fn signal(&self, is_waited_for: bool) {
        let mut signal = lock(&self.signal);
        signal.has_other_work = true;
        signal.has_work |= is_waited_for;
        let wakes = match signal.waits {
            Waits::No => false,
            Waits::Shortly => is_waited_for,
            Waits::ForLong => true,
        };
        if wakes {
            signal.waits = Waits::No;
        }
        drop(signal);
        if wakes {
            self.signalled.notify_one();
        }
    }

    /// Waits for [`Shared::signal`], or at most so long.
    pub(crate) fn wait_for_work(&self, at_most: Duration) -> Next {
        let mut signal = lock(&self.signal);
        // Records for which nothing waits gather, also those that come after a long wait.
        for (waits, time_max) in
            [(Waits::Shortly, TOGETHER), (Waits::ForLong, at_most), (Waits::Shortly, TOGETHER)]
        {
            signal.waits = waits;
            let goes_on = |signal: &mut Signal| {
                let has_work = signal.has_work || waits == Waits::ForLong && signal.has_other_work;
                !has_work && !signal.is_closing
            };
            let waited = self.signalled.wait_timeout_while(signal, time_max, goes_on);
            signal = waited.unwrap_or_else(PoisonError::into_inner).0;
            let is_done = waits == Waits::Shortly && signal.has_other_work;
            if is_done || signal.has_work || signal.is_closing {
                break;
            }
        }
        signal.waits = Waits::No;
        (signal.has_work, signal.has_other_work) = (false, false);
        if signal.is_closing { Next::Close } else { Next::Write }
    }

    /// Waits before a write is repeated, unless the node stops.
    pub(crate) fn wait_to_retry(&self, wait: Duration) -> Next {
        let mut signal = lock(&self.signal);
        if !signal.is_closing {
            let waits = |signal: &mut Signal| !signal.is_closing;
            let waited = self.signalled.wait_timeout_while(signal, wait, waits);
            signal = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if signal.is_closing { Next::Close } else { Next::Write }
    }

    /// The writer has ended.
    pub(crate) fn set_closed(&self) {
        lock(&self.signal).is_closed = true;
        self.closed.notify_all();
    }

    /// Has the writer write what waits, and end. Returns whether it did so in time.
    pub(crate) fn close(&self, time_max: Duration) -> bool {
        let until = Instant::now() + time_max;
        let mut signal = lock(&self.signal);
        signal.is_closing = true;
        self.signalled.notify_all();
        let left = until.saturating_duration_since(Instant::now());
        let waits = |signal: &mut Signal| !signal.is_closed;
        let waited = self.closed.wait_timeout_while(signal, left, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }

    /// Whether calls go on without waiting for their records: no write succeeds now.
    pub(crate) fn waits_for_nothing(&self) -> bool {
        self.settings.when_full == WhenFull::Drop
            && (self.is_failing.load(Ordering::Relaxed) || self.is_late.load(Ordering::Relaxed))
    }

    /// Notes that a record was not written in time.
    pub(crate) fn set_late(&self) {
        self.is_late.store(true, Ordering::Relaxed);
    }

    /// Notes that records were written.
    pub(crate) fn set_written(&self) {
        if self.is_late.load(Ordering::Relaxed) {
            self.is_late.store(false, Ordering::Relaxed);
        }
    }

    /// Shows how many bytes wait.
    pub(crate) fn show_waiting(&self) {
        QUEUE_BYTES.set(i64::try_from(self.total.bytes()).unwrap_or(i64::MAX));
    }

    /// Notes whether writes fail. Returns whether that is new.
    pub(crate) fn set_failing(&self, is_failing: bool) -> bool {
        let is_new = self.is_failing.swap(is_failing, Ordering::Relaxed) != is_failing;
        if is_new {
            self.show(is_failing);
        }
        is_new
    }

    /// Shows in this state from now on whether records can be written.
    pub(crate) fn report_to(&self, readiness: Readiness) {
        *lock(&self.readiness) = Some(readiness);
        self.show(self.is_failing.load(Ordering::Relaxed));
    }

    /// A node that refuses calls for lack of records is not ready; another one goes on.
    fn show(&self, is_failing: bool) {
        let readiness = lock(&self.readiness);
        let Some(readiness) = &*readiness else { return };
        match (self.settings.when_full, is_failing) {
            (WhenFull::Drop, is_failing) => readiness.remark(FAILING, is_failing),
            (WhenFull::Block, true) => readiness.hold(FAILING),
            (WhenFull::Block, false) => readiness.clear(FAILING),
        }
    }

    /// Notes that a record was left out, and has the writer report it.
    pub(crate) fn set_left_out(&self) {
        if !self.has_left_out.swap(true, Ordering::Relaxed) {
            self.signal(false);
        }
    }

    /// Whether a record was left out since the last report.
    pub(crate) fn has_left_out(&self) -> bool {
        self.has_left_out.load(Ordering::Relaxed)
    }

    /// Begins a report of what was left out.
    pub(crate) fn begin_report(&self) {
        self.has_left_out.store(false, Ordering::Relaxed);
    }
}

/// No code panics under these locks, so poisoning is ignored.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

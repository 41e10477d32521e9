//! The records of one thread that wait for the writer, and the calls that wait for their records.
//!
//! At the end of a tick this thread writes the records of the tick itself, with one system call, if the
//! destination takes them at once. Otherwise it wakes the writer once for all of them. Only this thread
//! adds to the queue, so the lock is almost never waited for.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::task::{Context, Waker};
use std::time::{Duration, Instant, SystemTime};

use tick::Deferred;

use crate::bounds::{Amount, Share};
use crate::clock::Clock;
use crate::entry::{CallId, Entry, Kind};
use crate::line;
use crate::metrics::RECORDS;
use crate::output::Rest;
use crate::shared::{Shared, lock};

/// A buffer that grew beyond this is not kept for the next batch.
const BUFFER_KEPT_BYTES: usize = 1 << 20;

/// The bits of a [`CallId`] that number the calls of one thread.
const CALL_BITS: u32 = 48;

/// The queue of one thread.
pub(crate) struct Queue {
    shared: Arc<Shared>,
    this: Weak<Self>,
    number: u64,
    /// The number of the last batch that was written.
    written: AtomicU64,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    /// The batch that is filled now.
    batch: Batch,
    /// The buffer of a batch that was written.
    spare: Vec<u8>,
    /// Whether the writer will be woken at the end of this tick.
    is_deferred: bool,
    /// Whether a call waits for a record of the tick.
    is_waited_for: bool,
    /// What waits of each tenant with a record of this thread. Tenants are those of the settings.
    slots: Vec<Slot>,
    /// The positions in `slots`.
    positions: HashMap<Arc<str>, usize>,
    /// The positions of the tenants with records in the batch.
    touched: Vec<usize>,
    /// The calls that wait: each at most for as long as calls are held.
    waiting: Vec<Waiting>,
    completer: Completer,
    clock: Clock,
    calls: u64,
}

/// The task of the thread that wakes its calls.
#[derive(Default)]
enum Completer {
    /// There is none: the writer wakes each call.
    #[default]
    None,
    Waits(Waker),
    /// It was woken, and will look at all calls.
    Woken,
}

/// Records that are written together.
pub(crate) struct Batch {
    /// Greater than that of each batch of the queue before it.
    pub(crate) number: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) kinds: [u32; Kind::ALL.len()],
    total: Amount,
    shares: Vec<(Arc<Share>, Amount)>,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            number: 1,
            bytes: Vec::new(),
            kinds: [0; Kind::ALL.len()],
            total: Amount::default(),
            shares: Vec::new(),
        }
    }
}

/// What one tenant has in the batch.
struct Slot {
    share: Arc<Share>,
    in_batch: Amount,
    /// As much of it as the share does not count yet.
    unpublished: Amount,
}

/// One call that waits.
struct Waiting {
    batch: u64,
    until: Instant,
    waker: Waker,
}

/// There is no room for the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Queue {
    pub(crate) fn new(shared: Arc<Shared>, number: u64) -> Arc<Self> {
        let (written, pending) = Default::default();
        Arc::new_cyclic(|this| Self { shared, this: this.clone(), number, written, pending })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// How long a call waits for its record.
    pub(crate) fn hold(&self) -> Duration {
        self.shared.hold()
    }

    /// An id for a call of this thread.
    pub(crate) fn next_call(&self) -> CallId {
        let mut pending = lock(&self.pending);
        pending.calls += 1;
        let of_process = (self.number << CALL_BITS) | (pending.calls & ((1 << CALL_BITS) - 1));
        CallId((u128::from(self.shared.process) << 64) | u128::from(of_process))
    }

    /// The share of a tenant.
    pub(crate) fn share(&self, tenant: &Arc<str>) -> Arc<Share> {
        let mut pending = lock(&self.pending);
        let position = pending.position(tenant, &self.shared);
        Arc::clone(&pending.slots[position].share)
    }

    /// Adds a record. Records beyond so many times the bounds are refused. Returns the number of its
    /// batch.
    pub(crate) fn add(
        self: &Arc<Self>,
        kind: Kind,
        tenant: &Arc<str>,
        entry: &Entry<'_>,
        times: usize,
    ) -> Result<u64, Full> {
        let (of_tenant, of_all) = self.shared.maxima();
        let times = |max: Amount| Amount {
            bytes: max.bytes.saturating_mul(times),
            records: max.records.saturating_mul(times),
        };
        let mut pending = lock(&self.pending);
        let in_tick = pending.batch.total;
        let position = pending.position(tenant, &self.shared);
        let slot = &pending.slots[position];
        let has_room = slot.share.level.has_room(slot.unpublished, times(of_tenant))
            // What this thread has added in this tick is nearly all of its batch.
            && self.shared.total.has_room(in_tick, times(of_all));
        if !has_room {
            return Err(Full);
        }
        let Pending { batch, clock, slots, touched, .. } = &mut *pending;
        let before = batch.bytes.len();
        batch.bytes.extend_from_slice(b"{\"time\":\"");
        clock.write(&mut batch.bytes, SystemTime::now());
        batch.bytes.push(b'"');
        let named = Some(&**tenant).filter(|tenant| !tenant.is_empty());
        line::write(&mut batch.bytes, kind, &self.shared.node, named, entry);
        let added = Amount::one(batch.bytes.len() - before);
        batch.total.add(added);
        batch.kinds[kind as usize] += 1;
        let number = batch.number;
        let slot = &mut slots[position];
        if slot.in_batch == Amount::default() {
            touched.push(position);
        }
        slot.in_batch.add(added);
        slot.unpublished.add(added);
        pending.is_waited_for |= kind.is_waited_for();
        let defers = !mem::replace(&mut pending.is_deferred, true);
        drop(pending);
        if defers {
            let work: Arc<dyn Deferred> = Arc::clone(self) as Arc<dyn Deferred>;
            tick::defer(&work);
        }
        Ok(number)
    }

    /// The number of the next batch that will be written.
    pub(crate) fn next_written(&self) -> u64 {
        self.written.load(Ordering::Acquire) + 1
    }

    /// Whether this batch is written.
    pub(crate) fn has_written(&self, batch: u64) -> bool {
        self.written.load(Ordering::Acquire) >= batch
    }

    /// Wakes the call when the batch is written, or at this time. Returns `false` if it is written.
    pub(crate) fn wait_for(&self, batch: u64, until: Instant, waker: &Waker) -> bool {
        let mut pending = lock(&self.pending);
        if self.has_written(batch) {
            return false;
        }
        pending.waiting.push(Waiting { batch, until, waker: waker.clone() });
        true
    }

    /// Wakes the calls of this thread whose records are written, or whose time is over. The task of
    /// this context is woken when there are more.
    pub(crate) fn wake_waiting(&self, context: &Context<'_>) {
        let mut pending = lock(&self.pending);
        match &mut pending.completer {
            Completer::Waits(waker) => waker.clone_from(context.waker()),
            other => *other = Completer::Waits(context.waker().clone()),
        }
        if pending.waiting.is_empty() {
            return;
        }
        let now = Instant::now();
        let written = self.written.load(Ordering::Acquire);
        let is_over = |waiting: &Waiting| waiting.batch <= written || waiting.until <= now;
        // The wakers are of this thread: waking one runs nothing now.
        pending.waiting.retain(|waiting| {
            let is_over = is_over(waiting);
            if is_over {
                waiting.waker.wake_by_ref();
            }
            !is_over
        });
    }

    /// Takes the batch, for the writer. The list must be empty.
    pub(crate) fn take(&self) -> Option<Batch> {
        let mut pending = lock(&self.pending);
        if pending.batch.bytes.is_empty() {
            return None;
        }
        pending.publish(&self.shared);
        let number = pending.batch.number + 1;
        let bytes = mem::take(&mut pending.spare);
        let next = Batch { number, bytes, ..Batch::default() };
        let mut batch = mem::replace(&mut pending.batch, next);
        let Pending { touched, slots, .. } = &mut *pending;
        for position in touched.drain(..) {
            let slot = &mut slots[position];
            batch.shares.push((Arc::clone(&slot.share), mem::take(&mut slot.in_batch)));
        }
        Some(batch)
    }

    /// Publishes what was added in the tick. Returns whether a call waits for it.
    fn end_tick(&self) -> bool {
        let mut pending = lock(&self.pending);
        pending.is_deferred = false;
        pending.publish(&self.shared);
        mem::take(&mut pending.is_waited_for)
    }

    /// Writes the batch, if the destination takes it at once. Returns whether the calls go on that wait for
    /// it.
    fn write_at_once(&self) -> bool {
        let mut output = match self.shared.output.try_lock() {
            Ok(output) => output,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread writes.
            Err(TryLockError::WouldBlock) => return false,
        };
        let Some(output) = &mut *output else { return false };
        if !output.takes_at_once(lock(&self.pending).batch.bytes.len()) {
            return false;
        }
        let Some(batch) = self.take() else { return true };
        let done = output.write_at_once(&batch.bytes);
        if done < batch.bytes.len() {
            output.rest = self.this.upgrade().map(|queue| Rest { queue, batch, done });
            return false;
        }
        self.shared.set_written();
        let mut pending = self.close(batch);
        let written = self.written.load(Ordering::Acquire);
        // The wakers are of this thread: waking one runs nothing now.
        let done = pending.waiting.extract_if(.., |waiting| waiting.batch <= written);
        done.for_each(|waiting| waiting.waker.wake());
        self.shared.show_waiting();
        true
    }

    /// Notes that the batch is written, and wakes the calls that waited for it.
    pub(crate) fn finish(&self, batch: Batch) {
        let mut pending = self.close(batch);
        if pending.waiting.is_empty() {
            return;
        }
        let wakers = match mem::take(&mut pending.completer) {
            // One wake-up of the thread, and not one for each call.
            Completer::Waits(waker) => {
                pending.completer = Completer::Woken;
                vec![waker]
            }
            Completer::Woken => {
                pending.completer = Completer::Woken;
                Vec::new()
            }
            Completer::None => {
                let written = self.written.load(Ordering::Acquire);
                let done = pending.waiting.extract_if(.., |waiting| waiting.batch <= written);
                done.map(|waiting| waiting.waker).collect()
            }
        };
        drop(pending);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Notes that the batch is written.
    fn close(&self, batch: Batch) -> MutexGuard<'_, Pending> {
        let Batch { number, mut bytes, total, shares, kinds } = batch;
        for (counter, count) in RECORDS.iter().zip(kinds).filter(|(_, count)| *count > 0) {
            counter.inc_by(count.into());
        }
        self.shared.total.lower(total);
        for (share, amount) in shares {
            share.level.lower(amount);
        }
        self.written.store(number, Ordering::Release);
        let mut pending = lock(&self.pending);
        if bytes.capacity() <= BUFFER_KEPT_BYTES {
            bytes.clear();
            pending.spare = bytes;
        }
        pending
    }
}

impl Pending {
    /// The position of a tenant's slot.
    fn position(&mut self, tenant: &Arc<str>, shared: &Shared) -> usize {
        if let Some(position) = self.positions.get(&**tenant) {
            return *position;
        }
        let (in_batch, unpublished) = Default::default();
        self.slots.push(Slot { share: shared.share(tenant), in_batch, unpublished });
        self.positions.insert(Arc::clone(tenant), self.slots.len() - 1);
        self.slots.len() - 1
    }

    /// Adds what is new to the levels that all threads see.
    fn publish(&mut self, shared: &Shared) {
        let mut total = Amount::default();
        for position in &self.touched {
            let slot = &mut self.slots[*position];
            let new = mem::take(&mut slot.unpublished);
            slot.share.level.raise(new);
            total.add(new);
        }
        shared.total.raise(total);
    }
}

impl Deferred for Queue {
    fn perform(&self) {
        let is_waited_for = self.end_tick();
        if !(is_waited_for && self.write_at_once()) {
            self.shared.signal(is_waited_for);
        }
    }

    fn perform_elsewhere(&self) {
        self.shared.signal(self.end_tick());
    }
}

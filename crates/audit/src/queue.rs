//! The records of one thread that wait for the writer, and the calls that wait for their records.
//!
//! At the end of a tick this thread writes the records of the tick itself, with one system call, if the
//! destination takes them at once, and then lets the calls go on. Otherwise it wakes the writer once for
//! all of them. Only this thread adds to the queue, so the lock is almost never waited for.
//!
//! The end of the tick is the run of a task of the thread, which runs behind all tasks that were ready
//! when the first record was made: all connections with input. A thread without such a task has
//! [`tick::defer`] instead.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tick::Deferred;

use crate::WhenFull;
use crate::bounds::{Amount, Share};
use crate::clock::Clock;
use crate::entry::{CallId, Entry, Kind, OriginSource};
use crate::known_origins::KnownOrigins;
use crate::line;
use crate::metrics::RECORDS;
use crate::output::Rest;
use crate::shared::{Shared, lock};
use crate::waiters::{Held, Waiters, Wakes};

/// A buffer that grew beyond this is not kept for the next batch.
const BUFFER_KEPT_BYTES: usize = 1 << 20;

/// The bits of a [`CallId`] that number the calls of one thread.
const CALL_BITS: u32 = 48;

/// The number of the next queue: a ticket names its queue by that, also beside those of another log of the process.
static QUEUES: AtomicU64 = AtomicU64::new(0);

/// The queue of one thread.
pub(crate) struct Queue {
    shared: Arc<Shared>,
    this: Weak<Self>,
    /// The number within the log.
    number: u64,
    number_in_process: u64,
    /// The number of the last batch that was written.
    written: AtomicU64,
    /// The calls that have an id.
    calls: AtomicU64,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    /// The batch that is filled now.
    batch: Batch,
    /// The buffer of a batch that was written.
    spare: Vec<u8>,
    /// The latest time that is known in the tick. A tick begins with a record for which a call waits, and ends with a
    /// write or a signal to the writer.
    tick_at: Option<Instant>,
    /// Whether the writer is about to look at the queue, for records for which nothing waits.
    is_signalled: bool,
    /// What waits of each tenant with a record of this thread. Tenants are those of the settings.
    slots: Vec<Slot>,
    /// The positions in `slots`.
    positions: HashMap<Arc<str>, usize>,
    /// The position of the last one.
    recent: Option<(Arc<str>, usize)>,
    /// The positions of the tenants with records in the batch.
    touched: Vec<usize>,
    waiters: Waiters,
    origins: KnownOrigins,
    /// The number of the last batch with records for which calls wait that the writer has or is to write.
    left_to_writer: u64,
    clock: Clock,
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
    /// How records name the node and the tenant.
    place: Box<[u8]>,
    in_batch: Amount,
    /// As much of it as the share does not count yet.
    unpublished: Amount,
}

/// How a tick ended.
#[derive(Clone, Copy)]
enum Tick {
    /// Its records were written by this time.
    Written(Instant),
    /// The writer is to be signalled.
    LeftToWriter,
}

/// There is no room for the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// There can be room when this batch is written.
    pub(crate) next: u64,
}

impl Queue {
    pub(crate) fn new(shared: Arc<Shared>, number: u64) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            shared,
            this: this.clone(),
            number,
            number_in_process: QUEUES.fetch_add(1, Ordering::Relaxed),
            written: AtomicU64::default(),
            calls: AtomicU64::default(),
            pending: Mutex::default(),
        })
    }

    /// A number that no other queue of the process has.
    pub(crate) fn number_in_process(&self) -> u64 {
        self.number_in_process
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
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let of_process = (self.number << CALL_BITS) | (call & ((1 << CALL_BITS) - 1));
        CallId::within(&self.shared.process, of_process)
    }

    /// The share of a tenant.
    pub(crate) fn share(&self, tenant: &Arc<str>) -> Arc<Share> {
        let mut pending = lock(&self.pending);
        let position = pending.position(tenant, &self.shared);
        Arc::clone(&pending.slots[position].share)
    }

    /// Adds a record. Records beyond so many times the bounds are refused. Returns the number of its batch, and its
    /// time: a record without one, for which a call waits, has the latest time that is known in the tick.
    pub(crate) fn add(
        self: &Arc<Self>,
        kind: Kind,
        tenant: &Arc<str>,
        entry: &Entry<'_>,
        times: usize,
    ) -> Result<(u64, Instant), Full> {
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
            return Err(Full { next: self.written.load(Ordering::Acquire) + 1 });
        }
        let of_tick = if kind.is_waited_for() { pending.tick_at } else { None };
        let at = entry.at.or(of_tick).unwrap_or_else(Instant::now);
        pending.tick_at = pending.tick_at.map(|tick_at| tick_at.max(at));
        let Pending { batch, clock, slots, touched, origins, .. } = &mut *pending;
        let before = batch.bytes.len();
        clock.write(&mut batch.bytes, at);
        let known_origin = match &entry.origin {
            // A request that is refused takes no place: its session can be any id.
            OriginSource::Session(origin) if kind.is_waited_for() => Some(origins.find(origin)),
            _ => None,
        };
        line::write(&mut batch.bytes, kind, &slots[position].place, known_origin, entry);
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
        if kind.is_waited_for() {
            let wakes = match pending.tick_at {
                Some(_) => Wakes::Nothing,
                None => {
                    pending.tick_at = Some(at);
                    pending.waiters.wake_task()
                }
            };
            drop(pending);
            match wakes {
                Wakes::Task(waker) => waker.wake(),
                Wakes::Nothing => {}
                Wakes::NoTask => tick::defer(&(Arc::clone(self) as Arc<dyn Deferred>)),
            }
        } else if pending.tick_at.is_none() && !mem::replace(&mut pending.is_signalled, true) {
            // What follows is published with the next tick, or when the writer takes the batch.
            pending.publish(&self.shared);
            drop(pending);
            self.shared.signal(false);
        }
        Ok((number, at))
    }

    /// Whether this batch is written.
    pub(crate) fn has_written(&self, batch: u64) -> bool {
        self.written.load(Ordering::Acquire) >= batch
    }

    /// Wakes a task when the batch is written, or at this time. Returns `false`, without effect, if it is written.
    pub(crate) fn wait_for(&self, batch: u64, until: Instant, waker: Waker) -> bool {
        let mut pending = lock(&self.pending);
        if self.has_written(batch) {
            return false;
        }
        pending.waiters.add(batch, until, waker);
        let task = pending.task_after_tick();
        drop(pending);
        task.into_iter().for_each(Waker::wake);
        true
    }

    /// Has the task of the thread look at everything soon.
    pub(crate) fn look_soon(&self) {
        let task = lock(&self.pending).task_after_tick();
        task.into_iter().for_each(Waker::wake);
    }

    /// Ends the tick, and wakes the tasks whose records are written, or whose time is over. The task of this context is
    /// woken when there are more, or when further records are written. Returns whether a task still waits.
    pub(crate) fn perform(&self, context: &Context<'_>) -> bool {
        let mut pending = lock(&self.pending);
        pending.waiters.set_task(context.waker());
        let tick = pending.tick_at.is_some().then(|| self.end_tick(&mut pending));
        let mut over = Vec::new();
        if !pending.waiters.is_empty() {
            let now = match tick {
                Some(Tick::Written(at)) => at,
                Some(Tick::LeftToWriter) | None => Instant::now(),
            };
            over = pending.waiters.take_over(self.written.load(Ordering::Acquire), Some(now));
        }
        let still_waits = !pending.waiters.is_empty();
        drop(pending);
        if let Some(Tick::LeftToWriter) = tick {
            self.shared.signal(true);
        }
        // These are of this thread: waking them runs nothing now.
        over.into_iter().for_each(Waker::wake);
        still_waits
    }

    /// Notes that a record was not written in time. With `when_full = "drop"` its call goes on.
    pub(crate) fn too_late(&self, held: Held) -> Result<(), Held> {
        self.shared.set_late();
        match self.shared.settings.when_full {
            WhenFull::Drop => Ok(()),
            WhenFull::Block => Err(held),
        }
    }

    /// Takes the batch, for the writer.
    pub(crate) fn take(&self) -> Option<Batch> {
        let mut pending = lock(&self.pending);
        pending.is_signalled = false;
        if pending.batch.bytes.is_empty() {
            return None;
        }
        if pending.tick_at.is_some() {
            pending.left_to_writer = pending.batch.number;
        }
        pending.publish(&self.shared);
        Some(pending.take())
    }

    /// Writes what was added in the tick, if the destination takes it at once. Otherwise the writer does.
    fn end_tick(&self, pending: &mut Pending) -> Tick {
        let number = pending.batch.number;
        pending.tick_at = None;
        let tick = self.write_at_once(pending);
        if let Tick::LeftToWriter = tick {
            pending.left_to_writer = number;
            pending.publish(&self.shared);
        }
        tick
    }

    /// Writes the batch in its place, if the destination takes it at once.
    fn write_at_once(&self, pending: &mut Pending) -> Tick {
        let mut output = match self.shared.output.try_lock() {
            Ok(output) => output,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread writes.
            Err(TryLockError::WouldBlock) => return Tick::LeftToWriter,
        };
        let Some(output) = &mut *output else { return Tick::LeftToWriter };
        let now = Instant::now();
        let bytes = pending.batch.bytes.len();
        if bytes == 0 {
            // The writer has taken it.
            return Tick::Written(now);
        }
        if !output.takes_at_once(bytes, now) {
            return Tick::LeftToWriter;
        }
        let (done, ended) = output.write_at_once(&pending.batch.bytes, now);
        if done < bytes {
            pending.publish(&self.shared);
            let batch = pending.take();
            output.rest = self.this.upgrade().map(|queue| Rest { queue, batch, done });
            return Tick::LeftToWriter;
        }
        self.shared.set_written();
        self.written.store(pending.clear(&self.shared), Ordering::Release);
        self.shared.show_waiting();
        Tick::Written(ended)
    }

    /// Notes that the batch is written, and wakes the task of the thread if calls may wait for it.
    pub(crate) fn finish(&self, batch: Batch) {
        let number = batch.number;
        let mut pending = self.close(batch);
        if number > pending.left_to_writer && pending.waiters.is_empty() {
            return;
        }
        match pending.waiters.wake_task() {
            // One wake-up of the thread, and not one for each call.
            Wakes::Task(waker) => {
                drop(pending);
                waker.wake();
            }
            Wakes::Nothing => {}
            Wakes::NoTask => {
                let written = self.written.load(Ordering::Acquire);
                let wakers = pending.waiters.take_over(written, None);
                drop(pending);
                wakers.into_iter().for_each(Waker::wake);
            }
        }
    }

    /// Notes that the batch is written.
    fn close(&self, batch: Batch) -> MutexGuard<'_, Pending> {
        let Batch { number, mut bytes, total, shares, kinds } = batch;
        count(&kinds);
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
    /// The task of the thread, to be woken; `None` while the tick goes on: then it was woken for a record of that.
    fn task_after_tick(&mut self) -> Option<Waker> {
        if self.tick_at.is_some() {
            return None;
        }
        match self.waiters.wake_task() {
            Wakes::Task(waker) => Some(waker),
            Wakes::Nothing | Wakes::NoTask => None,
        }
    }

    /// The position of a tenant's slot.
    fn position(&mut self, tenant: &Arc<str>, shared: &Shared) -> usize {
        match &self.recent {
            Some((recent, position)) if Arc::ptr_eq(recent, tenant) => *position,
            _ => {
                let position = self.find_position(tenant, shared);
                self.recent = Some((Arc::clone(tenant), position));
                position
            }
        }
    }

    fn find_position(&mut self, tenant: &Arc<str>, shared: &Shared) -> usize {
        if let Some(position) = self.positions.get(&**tenant) {
            return *position;
        }
        let named = Some(&**tenant).filter(|tenant| !tenant.is_empty());
        let place = line::place(&shared.node, named);
        let (in_batch, unpublished) = Default::default();
        self.slots.push(Slot { share: shared.share(tenant), place, in_batch, unpublished });
        self.positions.insert(Arc::clone(tenant), self.slots.len() - 1);
        self.slots.len() - 1
    }

    /// Takes the batch, and begins the next one.
    fn take(&mut self) -> Batch {
        let (number, bytes) = (self.batch.number + 1, mem::take(&mut self.spare));
        let next = Batch { number, bytes, ..Batch::default() };
        let mut batch = mem::replace(&mut self.batch, next);
        for position in self.touched.drain(..) {
            let slot = &mut self.slots[position];
            batch.shares.push((Arc::clone(&slot.share), mem::take(&mut slot.in_batch)));
        }
        batch
    }

    /// Begins the next batch after this one was written in its place. Returns the number of this one.
    fn clear(&mut self, shared: &Shared) -> u64 {
        let Batch { number, bytes, kinds, total, .. } = &mut self.batch;
        count(&mem::take(kinds));
        *total = Amount::default();
        for position in self.touched.drain(..) {
            let Slot { share, in_batch, unpublished, .. } = &mut self.slots[position];
            // Most was never in the levels.
            let published = mem::take(in_batch).without(mem::take(unpublished));
            if published != Amount::default() {
                share.level.lower(published);
                shared.total.lower(published);
            }
        }
        match bytes.capacity() <= BUFFER_KEPT_BYTES {
            true => bytes.clear(),
            false => *bytes = Vec::new(),
        }
        *number += 1;
        *number - 1
    }

    /// Adds what is new, and is left to the writer, to the levels that all threads see.
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

/// Counts records that are written.
fn count(kinds: &[u32; Kind::ALL.len()]) {
    for (counter, count) in RECORDS.iter().zip(kinds).filter(|(_, count)| **count > 0) {
        counter.inc_by((*count).into());
    }
}

/// The end of the tick of a thread without a task.
impl Deferred for Queue {
    fn perform(&self) {
        let mut pending = lock(&self.pending);
        let tick = self.end_tick(&mut pending);
        let wakers = pending.waiters.take_over(self.written.load(Ordering::Acquire), None);
        drop(pending);
        if let Tick::LeftToWriter = tick {
            self.shared.signal(true);
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    fn perform_elsewhere(&self) {
        let mut pending = lock(&self.pending);
        pending.left_to_writer = pending.batch.number;
        pending.tick_at = None;
        pending.publish(&self.shared);
        drop(pending);
        self.shared.signal(true);
    }
}

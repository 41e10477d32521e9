//! The two handles of the audit log: of a node, and of one thread that serves clients.

use std::fmt;
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use telemetry::{Readiness, TenantLabels};

use crate::bounds::Limited;
use crate::entry::{CallId, Entry, Kind};
use crate::metrics::LeftOut;
use crate::queue::{Full, Queue};
use crate::shared::Shared;
use crate::sink::Sink;
use crate::waiters::Held;
use crate::written::Written;
use crate::{Error, Settings, To, WhenFull, writer};

/// How long the end of the node waits for the writer.
const CLOSE: Duration = Duration::from_secs(3);

/// How long a call waits until it looks again whether there is room.
const ROOM_STEP: Duration = Duration::from_millis(20);

/// Records of calls that are over may exceed the bounds so many times: such a call began within them.
const ENDING_TIMES: usize = 2;

/// The audit log of a node. Cheap to clone; all clones are of one log.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Shared>>);

/// The audit log as one thread that serves clients uses it. Cheap to clone within the thread.
#[derive(Clone, Default)]
pub struct Recorder(Option<Arc<Queue>>);

/// A record that was taken: [`Recorder::written`] waits until it is written, and [`Recorder::outcome`] tells whether
/// it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The number of the queue, and that of its batch. `None`: nothing is waited for.
    batch: Option<(u64, u64)>,
    /// When the wait is over; `None`: as long as calls are held from now on.
    until: Option<Instant>,
}

impl Ticket {
    /// Nothing is waited for.
    const NONE: Self = Self { batch: None, until: None };

    /// Whether there is something to wait for.
    pub fn waits(self) -> bool {
        self.batch.is_some()
    }

    /// The same, with the end of a wait that began before.
    pub fn until(self, until: Option<Instant>) -> Self {
        Self { until: until.or(self.until), ..self }
    }
}

impl Audit {
    /// Opens the destination and starts the thread that writes. Nothing is opened for a log that is
    /// off. `node` is the node's name, which each record has.
    pub fn start(settings: &Settings, node: &str, labels: TenantLabels) -> Result<Self, Error> {
        if settings.to == To::Off {
            return Ok(Self(None));
        }
        let sink = Sink::open(settings, node)?;
        let shared = Arc::new(Shared::new(settings, node, labels, Some(sink)));
        let of_writer = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("audit".into());
        thread.spawn(move || writer::run(&of_writer)).map_err(Error::Thread)?;
        Ok(Self(Some(shared)))
    }

    /// A log whose records stay in its queues until [`Recorder::take_all`], for measurements.
    pub fn collecting(settings: &Settings) -> Self {
        let shared = Shared::new(settings, "n1", TenantLabels::default(), None);
        Self(Some(Arc::new(shared)))
    }

    /// Whether records are made.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Shows in this state whether records can be written.
    pub fn report_to(&self, readiness: Readiness) {
        if let Some(shared) = &self.0 {
            shared.report_to(readiness);
        }
    }

    /// A recorder for one thread. Make one for each thread, and not one for each record.
    pub fn recorder(&self) -> Recorder {
        Recorder(self.0.as_ref().map(Shared::add_queue))
    }

    /// Writes what waits, and ends the writer. Blocks for at most three seconds.
    pub fn close(&self) {
        if let Some(shared) = &self.0
            && !shared.close(CLOSE)
        {
            let bytes = shared.total.bytes();
            tracing::error!(bytes, "audit records were lost: they could not be written in time");
        }
    }

    /// Closes the log when this is dropped.
    pub fn closing(&self) -> impl Drop + use<> {
        Closing(self.clone())
    }
}

struct Closing(Audit);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Recorder {
    /// Whether records are made. If not, there is no need to collect what is known.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// An id for a call.
    pub fn next_call(&self) -> CallId {
        self.0.as_ref().map_or(CallId::new(0, 0), |queue| queue.next_call())
    }

    /// Records a call that is about to be dispatched: do so when [`Recorder::outcome`] lets it go on,
    /// or when [`Recorder::written`] has resolved. Without a time of its own it has the latest one that is known in the
    /// tick of the thread: that of its first record, or of an end since. A tick usually takes a few milliseconds at most.
    pub fn begin(&self, tenant: &Arc<str>, entry: &Entry<'_>) -> Result<Ticket, Full> {
        self.admit(Kind::Begin, tenant, entry)
    }

    /// Records a message without a response, or the end of a session, that is about to be dispatched.
    pub fn message(&self, tenant: &Arc<str>, entry: &Entry<'_>) -> Result<Ticket, Full> {
        self.admit(Kind::Message, tenant, entry)
    }

    /// Waits until there can be room for the record that was refused, which the records of another thread may
    /// take: try again. Until `until`, which is
    /// set by the first wait, to as long as calls are held.
    pub async fn room(&self, full: Full, until: &mut Option<Instant>) -> Result<(), Held> {
        let Some(queue) = &self.0 else { return Ok(()) };
        let until = *until.get_or_insert_with(|| Instant::now() + queue.hold());
        let step = (Instant::now() + ROOM_STEP).min(until);
        match Written::new(queue, full.next, Some(step)).await {
            Err(Held) if Instant::now() < until => Ok(()),
            waited => waited,
        }
    }

    /// Waits until the record is written. With `when_full = "block"` a record that is not written in
    /// time is an error: the call must not be dispatched.
    pub async fn written(&self, ticket: Ticket) -> Result<(), Held> {
        let (Some(queue), Some((_, batch))) = (&self.0, ticket.batch) else { return Ok(()) };
        debug_assert!(self.has_made(ticket), "a record of another recorder");
        let written = Written::new(queue, batch, ticket.until).await;
        written.or_else(|held| queue.too_late(held))
    }

    /// Whether this recorder made the record of the ticket, for which something waits.
    pub fn has_made(&self, ticket: Ticket) -> bool {
        let of_ticket = ticket.batch.map(|(queue, _)| queue);
        of_ticket.is_some() && of_ticket == self.0.as_ref().map(|queue| queue.number_in_process())
    }

    /// Whether the record is written, or nothing is waited for. `false` for a record of another recorder.
    pub fn is_written(&self, ticket: Ticket) -> bool {
        let (Some(queue), Some((_, batch))) = (&self.0, ticket.batch) else { return true };
        self.has_made(ticket) && queue.has_written(batch)
    }

    /// What [`Recorder::written`] would resolve to by now. `None`: the call still waits, or the record is of another
    /// recorder. `now` is called if the record is not written.
    pub fn outcome(
        &self,
        ticket: Ticket,
        now: impl FnOnce() -> Instant,
    ) -> Option<Result<(), Held>> {
        if self.is_written(ticket) {
            return Some(Ok(()));
        }
        let queue = self.0.as_ref().filter(|_| self.has_made(ticket))?;
        ticket.until.is_some_and(|until| until <= now()).then(|| queue.too_late(Held))
    }

    /// Has the task that calls [`Recorder::perform`] do so soon. It does without this in the tick of a record for
    /// which a call waits, when the writer has written what the thread left to it, and at the interval while a call
    /// waits.
    pub fn look_soon(&self) {
        if let Some(queue) = &self.0 {
            queue.look_soon();
        }
    }

    /// Records the outcome of a call.
    pub fn end(&self, tenant: &Arc<str>, entry: &Entry<'_>) {
        self.add(Kind::End, tenant, entry);
    }

    /// Records a request that was not dispatched. Of each tenant at most `refusals_per_sec`.
    pub fn refused(&self, tenant: &Arc<str>, entry: &Entry<'_>) {
        self.add_limited(Kind::Refused, Limited::Refusals, tenant, entry);
    }

    /// Records a request whose sender could not be authenticated. Of each tenant at most
    /// `refusals_per_sec`.
    pub fn sign_in_failed(&self, tenant: &Arc<str>, entry: &Entry<'_>) {
        self.add_limited(Kind::SignInFailed, Limited::SignIns, tenant, entry);
    }

    /// Records that sessions and credentials of a subject were revoked.
    pub async fn revoked(&self, tenant: &Arc<str>, entry: &Entry<'_>) -> Result<(), Held> {
        let ticket = self.admit_in_time(Kind::Revoked, tenant, entry).await?;
        self.written(ticket).await
    }

    /// Records what an operator is about to do, or was about to read: do it, or answer, when this has
    /// resolved. Without a tenant it is about the node.
    pub async fn admin(&self, tenant: Option<&Arc<str>>, entry: &Entry<'_>) -> Result<(), Held> {
        let none = Arc::from("");
        let ticket = self.admit_in_time(Kind::Admin, tenant.unwrap_or(&none), entry).await?;
        self.written(ticket).await
    }

    /// Records a definition of a server that is not the approved one. Any thread may call this; the caller bounds
    /// how often.
    pub fn definition(&self, tenant: &Arc<str>, entry: &Entry<'_>) {
        self.add(Kind::Definition, tenant, entry);
    }

    /// Counts a call that is refused because its record could not be written.
    pub fn count_held(&self, tenant: &Arc<str>) {
        if let Some(queue) = &self.0 {
            queue.share(tenant).refuse();
        }
    }

    /// Writes the records of the tick, and wakes the tasks whose records are written, or whose time is over. Call it
    /// from a task of the thread that never ends, and then [`Recorder::outcome`] for the calls that the thread holds.
    /// The task is woken when there are records, or when they are written. Returns whether a task still waits: then,
    /// and while the thread holds a call, call it also at an interval, since the task is not woken when their time is
    /// over.
    pub fn perform(&self, context: &Context<'_>) -> bool {
        self.0.as_ref().is_some_and(|queue| queue.perform(context))
    }

    /// The longest wait for a record. `None`: the log is off.
    pub fn hold(&self) -> Option<Duration> {
        self.0.as_ref().map(|queue| queue.hold())
    }

    /// How often [`Recorder::perform`] should be called while a call waits. `None`: never, the log is off.
    pub fn perform_interval(&self) -> Option<Duration> {
        let hold = self.0.as_ref()?.hold();
        Some((hold / 10).clamp(Duration::from_millis(10), Duration::from_millis(100)))
    }

    /// The records that were taken since the last call, of a log that only collects. The tasks that
    /// wait for them are woken.
    pub fn take_all(&self) -> Vec<u8> {
        let batch = self.0.as_ref().and_then(|queue| Some((queue, queue.take()?)));
        let Some((queue, batch)) = batch else { return Vec::new() };
        let bytes = batch.bytes.clone();
        queue.finish(batch);
        bytes
    }

    /// Adds a record for which a call waits.
    fn admit(&self, kind: Kind, tenant: &Arc<str>, entry: &Entry<'_>) -> Result<Ticket, Full> {
        let Some(queue) = &self.0 else { return Ok(Ticket::NONE) };
        match queue.add(kind, tenant, entry, 1) {
            Ok(_) if queue.shared().waits_for_nothing() => Ok(Ticket::NONE),
            Ok((batch, at)) => {
                let batch = Some((queue.number_in_process(), batch));
                Ok(Ticket { batch, until: Some(at + queue.hold()) })
            }
            Err(_) if queue.shared().settings.when_full == WhenFull::Drop => {
                leave_out(queue, tenant, LeftOut::Full);
                Ok(Ticket::NONE)
            }
            Err(full) => Err(full),
        }
    }

    /// The same, and waits for room.
    async fn admit_in_time(
        &self,
        kind: Kind,
        tenant: &Arc<str>,
        entry: &Entry<'_>,
    ) -> Result<Ticket, Held> {
        let mut until = None;
        loop {
            match self.admit(kind, tenant, entry) {
                Ok(ticket) => return Ok(ticket.until(until)),
                Err(full) => self.room(full, &mut until).await?,
            }
        }
    }

    /// Adds a record for which nothing waits.
    fn add(&self, kind: Kind, tenant: &Arc<str>, entry: &Entry<'_>) {
        let Some(queue) = &self.0 else { return };
        if queue.add(kind, tenant, entry, ENDING_TIMES).is_err() {
            leave_out(queue, tenant, LeftOut::Full);
        }
    }

    fn add_limited(&self, kind: Kind, what: Limited, tenant: &Arc<str>, entry: &Entry<'_>) {
        let Some(queue) = &self.0 else { return };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let per_sec = queue.shared().settings.refusals_per_sec;
        if !queue.share(tenant).takes(what, since.as_secs(), per_sec) {
            leave_out(queue, tenant, LeftOut::Rate);
        } else if queue.add(kind, tenant, entry, 1).is_err() {
            leave_out(queue, tenant, LeftOut::Full);
        }
    }
}

fn leave_out(queue: &Queue, tenant: &Arc<str>, reason: LeftOut) {
    queue.share(tenant).leave_out(reason);
    queue.shared().set_left_out();
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit").field("is_on", &self.is_on()).finish()
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("is_on", &self.is_on()).finish()
    }
}

#[cfg(test)]
#[path = "recorder_tests.rs"]
mod tests;

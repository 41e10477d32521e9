//! The actor of one session: the only code that waits and acts for the session.
//!
//! The actor makes no protocol decisions. It passes events to the [`Session`] and performs the
//! effects that the session returns (`effects`), until the session leaves this owner (`leaving`).
//! It never blocks: connections are bounded queues, and links and the store are polled. A panic in
//! the actor ends this session and no other.
//!
//! The actor acts only while this node owns the session. Messages that arrive at other times are
//! deferred, and handled when the node owns the session again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Handler, WrapFuture};
use backends::Backend;
use budget::Held;
use conversation::{BudgetVerdict, Effect, Event, Millis, OwnerTag, Refusal, Session};
use ownership::lease_lapse::LeaseLapse;
use ownership::machine::Outcome;
use thin_vec::ThinVec;

use super::SessionHandle;
use super::deferred::DeferredMessages;
use super::life::{Life, Recorded};
use super::link_state::LinkState;
use super::log_writer::LogWriter;
use super::long_step::LongStep;
use super::machine::Machine;
use super::message::SessionMessage;
use super::pump::Pump;
use super::record::PendingRecord;
use super::relief::Relief;
use super::session_spans::SessionSpans;
use super::sinks::Sinks;
use crate::clock;
use crate::limits::CountedExchanges;
use crate::metrics::{self, End, Hold};
use crate::node_context::NodeContext;
use crate::registry::Registration;
use crate::reply::Sink;
use crate::session_summary::Activity;
use crate::timer::Timer;

/// The shortest wait before a store operation is retried, in milliseconds.
const STORE_WAIT_MIN: u64 = 20;

/// The actor of one session.
pub(crate) struct SessionActor {
    pub(super) context: Arc<NodeContext>,
    pub(super) handle: Arc<SessionHandle>,
    pub(super) session: Machine,
    /// A step that another thread runs, until the actor waits for it.
    pub(super) long_step: Option<LongStep>,
    pub(super) life: Life,
    pub(super) sinks: Sinks,
    pub(super) link: LinkState,
    pub(super) spans: SessionSpans,
    /// The backend of the link that was opened last. It is kept until the next one is opened, so its
    /// address tells it from each later one.
    pub(super) backend: Option<Arc<dyn Backend>>,
    pub(super) timer: Timer,
    /// Events that result from performed effects and store operations, and are bounded by them.
    pub(super) following: ThinVec<Event>,
    /// Effects that wait until the record is created or until the node owns the session. No other
    /// event is handled meanwhile.
    pub(super) parked_effects: ThinVec<Effect>,
    pub(super) deferred: DeferredMessages,
    /// The arrival time of the latest request of a client.
    pub(super) touched: Millis,
    /// When the session began at this node.
    pub(super) began: Millis,
    /// Whether the session ends once no request is in flight.
    is_draining: bool,
    /// How long the node has not been allowed to act for the session.
    lapse: LeaseLapse,
    /// Whether the timer fired while the node did not own the session.
    timer_fired: bool,
    /// The requests in flight, as counted last.
    exchanges: CountedExchanges,
    /// The bytes that the session keeps, as charged to its tenant's share.
    kept: Held,
    /// The bytes that its record and log keep, as charged to its tenant's share of the store.
    pub(super) stored: Held,
    /// No event is dropped for relief before this time: a stream was cut, and its client may resume.
    keeps_events_until: Millis,
    /// Whether the client has completed the handshake, as far as the registry knows.
    is_confirmed: bool,
    /// Whether the session was told that the tenant's share is used up.
    is_budget_exhausted: bool,
    /// What the session was told of the tenant's share of the store.
    store_exhausted: Option<Millis>,
}

/// The parts of a session's actor.
pub(crate) struct ActorParts {
    pub(super) context: Arc<NodeContext>,
    pub(super) handle: Arc<SessionHandle>,
    pub(super) session: Session,
    pub(super) beginning: Beginning,
    pub(super) registration: Registration,
    pub(super) now: Millis,
}

/// The start of a session on this node.
pub(super) enum Beginning {
    /// A new session, whose first connection waits.
    New { pending_record: Box<PendingRecord>, sink: Sink },
    /// A claimed session. The effects concern the requests that were in flight at its former owner.
    Claimed { log_writer: Box<LogWriter>, effects: Vec<Effect> },
}

impl SessionActor {
    pub(super) fn new(parts: ActorParts) -> Self {
        let ActorParts { context, handle, session, beginning, registration, now } = parts;
        let mut sinks = Sinks::default();
        let mut parked_effects = ThinVec::new();
        let life = match beginning {
            Beginning::New { pending_record, sink } => {
                sinks.push(sink);
                Life::Unrecorded(pending_record, registration)
            }
            Beginning::Claimed { log_writer, effects } => {
                parked_effects = effects.into();
                Life::Recorded(Recorded { log_writer: *log_writer, registration })
            }
        };
        let kept = Held::nothing(&handle.share);
        let stored = Held::nothing(&context.session_bytes.share_of_store(handle.tenant()));
        Self {
            context,
            handle,
            session: Machine::new(session),
            long_step: None,
            life,
            sinks,
            link: LinkState::Down,
            spans: SessionSpans::default(),
            backend: None,
            timer: Timer::new(now),
            following: ThinVec::new(),
            parked_effects,
            deferred: DeferredMessages::default(),
            touched: now,
            began: now,
            is_draining: false,
            lapse: LeaseLapse::default(),
            timer_fired: false,
            exchanges: CountedExchanges::default(),
            kept,
            stored,
            keeps_events_until: Millis(0),
            is_confirmed: false,
            is_budget_exhausted: false,
            store_exhausted: None,
        }
    }

    /// Runs a part of the session's work. A panic ends this session only. It must not reach actix,
    /// which would poll the actor again while unwinding.
    pub(super) fn run_guarded(
        &mut self,
        context: &mut actix::Context<Self>,
        work: impl FnOnce(&mut Self),
    ) {
        if self.life.is_over() {
            return;
        }
        if catch_unwind(AssertUnwindSafe(|| work(self))).is_err() {
            tracing::error!(session = ?self.handle.session, "session panicked and was ended");
            self.abandon(End::Panicked);
        }
        if self.life.is_over() {
            context.stop();
        } else {
            self.await_record(context);
            self.await_long_step(context);
        }
    }

    /// Handles no further message until the record is created, if it is being created.
    fn await_record(&mut self, context: &mut actix::Context<Self>) {
        let pending_record = self.life.pending_record();
        let Some(creation) = pending_record.and_then(|record| record.creation.take()) else {
            return;
        };
        let created = creation.into_actor(self).map(|outcome, actor, context| {
            actor.run_guarded(context, |actor| {
                actor.record_created(outcome);
                actor.run_until_idle(clock::now());
            });
        });
        context.wait(created);
    }

    /// Whether the node may act for the session now. No round trip.
    fn may_act(&mut self) -> bool {
        self.observe_failovers();
        let lease_generation = self.context.valid_lease_generation();
        let snapshot = || self.context.lease_snapshot(&self.handle.session);
        self.life.log_writer().map_or(lease_generation.is_some(), |log_writer| {
            log_writer.may_act(lease_generation, snapshot)
        })
    }

    fn observe_failovers(&mut self) {
        if let Some(log_writer) = self.life.log_writer_mut() {
            log_writer.observe(self.context.cluster.newest_failover_generation(), || {
                self.context.lease_snapshot(&self.handle.session)
            });
        }
    }

    /// Marks the log writer dirty so that the next poll checks for pending store operations.
    fn mark_dirty(&mut self) {
        self.life.log_writer_mut().into_iter().for_each(LogWriter::mark_dirty);
    }

    /// Polls for the next event that the session may handle now.
    pub(super) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        self.observe_failovers();
        self.poll_log_writer(context);
        if self.life.is_over() {
            return Poll::Pending;
        }
        if let Some(at) = self.life.log_writer().and_then(LogWriter::wake_at) {
            let now = clock::now();
            self.timer.fire_by(Some(Millis(at).max(now.plus(STORE_WAIT_MIN))), now);
        }
        let may_act = self.may_act();
        if !self.life.stays() || !may_act {
            if !may_act {
                self.lapse.begin_lapse(clock::now().0);
            }
            self.poll_while_not_acting(context);
            return Poll::Pending;
        }
        if self.lapse.end_lapse() {
            // Deferred work comes first. It may have polled the store without this task's waker.
            self.run_until_idle(clock::now());
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(event) = take_first(&mut self.following) {
            return Poll::Ready(event);
        }
        if self.timer.poll(context).is_ready() {
            self.mark_dirty();
            return Poll::Ready(Event::DeadlinePassed);
        }
        let (node, handle) = (&self.context, &self.handle);
        self.link.poll_event(context, |state| node.link_seal.seal(&handle.session, state))
    }

    /// Polls while the node may not act for the session. Streams stay open. A timer that fires is
    /// recorded, so that `poll_log_writer` has the session claimed.
    fn poll_while_not_acting(&mut self, context: &mut Context<'_>) {
        self.expire_waiting_requests();
        while self.timer.poll(context).is_ready() {
            let now = clock::now();
            if self.leaves_too_long(now) {
                return;
            }
            self.timer_fired = true;
            self.mark_dirty();
            self.deferred.expire(now);
            let next = now.plus(self.context.limits.keepalive_secs.max(1) * 1_000);
            let wake_at = self.life.log_writer().and_then(LogWriter::wake_at).map(Millis);
            let departs_by = self.life.departure().map(|departure| departure.until);
            let wake_at =
                wake_at.into_iter().chain(self.deferred.next_expiry()).chain(departs_by).min();
            let next = wake_at.map_or(next, |at| at.max(now.plus(STORE_WAIT_MIN)).min(next));
            self.timer.fire_by(Some(next), now);
            self.expire_waiting_requests();
            self.poll_log_writer(context);
        }
    }

    /// Gives up requests without any reply if the node has not been allowed to act for `hold_ms`.
    /// Their work continues once the node may act again. Streams stay open: their clients can
    /// resume them elsewhere.
    fn expire_waiting_requests(&mut self) {
        let settings = &self.context.settings;
        let (hold, hold_ms) = (settings.hold(), settings.hold_ms);
        let Some(until) = self.lapse.held_until(hold_ms).map(Millis) else { return };
        if !self.life.stays() || !self.sinks.any(|sink| !sink.is_open()) {
            return;
        }
        let now = clock::now();
        if now < until {
            self.timer.fire_by(Some(until), now);
            return;
        }
        for sink in self.sinks.take_if(|sink| !sink.is_open()) {
            metrics::count_hold(Hold::Expired);
            self.following.push(Event::SinkClosed { sink: sink.id });
            sink.lose_lease(hold.as_secs());
        }
    }

    /// Runs parked effects, following events and deferred messages until none are left or the node
    /// may not act for the session.
    pub(super) fn run_until_idle(&mut self, now: Millis) {
        while self.life.stays() && !self.life.is_being_recorded() && self.may_act() {
            self.timer_fired = false;
            if !self.parked_effects.is_empty() {
                let parked = std::mem::take(&mut self.parked_effects);
                parked.into_iter().for_each(|effect| self.perform_effect(effect));
            } else if let Some(event) = take_first(&mut self.following) {
                self.step(now, event);
            } else if let Some((event, sink)) = self.deferred.take_first() {
                self.deliver(event, sink, now);
            } else if self.handle.take_reader_left() {
                let following = &mut self.following;
                self.sinks.drop_left(|sink| following.push(Event::SinkClosed { sink }));
            } else if self.is_draining && !self.session.has_work() {
                self.step(now, Event::Stopping);
            } else {
                break;
            }
        }
        self.count_exchanges();
        self.charge_kept_bytes();
        if !self.is_confirmed && self.session.is_live() {
            self.is_confirmed = true;
            self.handle.set_handshake(self.session.revision(), &self.session.initialize());
            self.life.registration().into_iter().for_each(Registration::confirm);
        }
        self.shrink();
        self.timer.fire_by(self.session.deadline(), now);
    }

    /// Releases memory that an idle session does not need.
    fn shrink(&mut self) {
        if self.following.is_empty() {
            self.following = ThinVec::new();
        }
        self.deferred.shrink();
        self.sinks.shrink();
    }

    /// Charges the bytes that the session keeps to its tenant's shares.
    fn charge_kept_bytes(&mut self) {
        let kept = budget::in_granules(self.session.kept_bytes() + self.handle.token_bytes());
        if kept != self.kept.amount() {
            self.kept.set(kept);
        }
        // A session that leaves is charged as one that sleeps, or not at all.
        let stored = if self.life.stays() { self.session.stored_bytes() } else { 0 };
        let stored = budget::in_granules(stored);
        if stored != self.stored.amount() {
            self.stored.set(stored);
        }
    }

    /// Tells the session whether its tenant keeps as many bytes in the store as it may, if that has
    /// changed. If so, a session that is idle drops the events that have been delivered, or have had
    /// the time to be, and does not fall asleep before it could.
    pub(super) fn judge_store(&mut self, now: Millis) {
        let is_exhausted = self.stored.share().is_exceeded();
        let exhausted = is_exhausted.then_some(self.keeps_events_until);
        if exhausted != self.store_exhausted {
            self.store_exhausted = exhausted;
            self.step(now, Event::Budget(BudgetVerdict::Store { exhausted }));
        }
        let is_idle = self.sinks.is_empty() && !self.session.has_work();
        if is_exhausted && is_idle && now >= self.keeps_events_until {
            self.step(now, Event::Budget(BudgetVerdict::Trim));
            self.charge_kept_bytes();
        }
    }

    /// Tells the session whether its tenant's share is used up, if that has changed. Called before
    /// each request.
    fn judge_budget(&mut self, now: Millis) {
        let is_exhausted = self.handle.share.is_exceeded();
        if is_exhausted != self.is_budget_exhausted {
            self.is_budget_exhausted = is_exhausted;
            let verdict =
                if is_exhausted { BudgetVerdict::Exhausted } else { BudgetVerdict::Available };
            self.step(now, Event::Budget(verdict));
        }
    }

    /// Releases bytes of a tenant that keeps too many.
    fn relieve(&mut self, relief: Relief) {
        if !self.life.stays() {
            return;
        }
        match relief {
            Relief::CutQueues { from } => {
                let (following, share) = (&mut self.following, &self.handle.share);
                let first_kept = self.session.first_kept_event();
                let is_cut = self.sinks.cut_unread((from, first_kept), share, |sink| {
                    following.push(Event::SinkClosed { sink });
                });
                if is_cut {
                    self.keeps_events_until = clock::now().plus(self.context.settings.hold_ms);
                }
                self.run_until_idle(clock::now());
            }
            // The clients whose streams were cut have as long to resume as all others.
            Relief::Verdict(BudgetVerdict::Trim) if clock::now() < self.keeps_events_until => {}
            // It is repeated, so it need not wait for the lease.
            Relief::Verdict(verdict) => {
                if self.may_act() {
                    // What follows or waits comes before the verdict.
                    self.run_until_idle(clock::now());
                    if verdict == BudgetVerdict::Sleep && self.life.stays() && self.may_act() {
                        self.judge_store(clock::now());
                    }
                    self.receive(Event::Budget(verdict), None);
                }
            }
        }
    }

    pub(super) fn count_exchanges(&mut self) {
        let exchanges = if self.life.stays() { self.session.exchanges() } else { 0 };
        let limits = self.session.is_duplex().then_some(&self.context.cluster_limits);
        self.exchanges.set(exchanges, limits, self.handle.tenant());
    }

    /// What the session does, for operators.
    fn activity(&self) -> Activity {
        let now = clock::now();
        let secs_since = |time: Millis| now.0.saturating_sub(time.0) / 1_000;
        Activity {
            at_node_secs: secs_since(self.began),
            idle_secs: secs_since(self.touched),
            requests: self.session.exchanges() as u64,
            streams: self.sinks.count_open() as u64,
        }
    }

    /// Passes a message to the session.
    fn deliver(&mut self, event: Event, sink: Option<Sink>, now: Millis) {
        self.add_sink(sink, now);
        self.step(now, event);
    }

    /// Adds the connection of a request that is about to be passed to the session.
    fn add_sink(&mut self, sink: Option<Sink>, now: Millis) {
        if let Some(sink) = sink {
            // An earlier check for readers that have left did not include a sink that had not
            // arrived yet.
            if sink.is_left() {
                self.handle.note_reader_left();
            }
            self.sinks.push(sink);
            self.judge_budget(now);
        }
    }

    /// Whether the log writer is to be polled now. A session that its node may have lost is claimed
    /// again if a request, a stream or a timer waits for it, or if the store may have lost its
    /// record; else with its next message.
    fn is_log_writer_due(&mut self) -> bool {
        match self.life.log_writer() {
            None => return false,
            Some(log_writer) if log_writer.is_busy() => return true,
            Some(log_writer) if !log_writer.is_dirty() => return false,
            Some(_) => {}
        }
        let is_waited_for = self.timer_fired
            || !self.life.stays()
            || !self.deferred.is_empty()
            || !self.parked_effects.is_empty()
            || !self.sinks.is_empty()
            || self.session.has_work();
        if is_waited_for || self.may_act() {
            return true;
        }
        self.timer_fired = self.life.log_writer().is_some_and(|log_writer| !log_writer.is_sure());
        self.timer_fired
    }

    /// Polls the log writer and handles the outcomes.
    pub(super) fn poll_log_writer(&mut self, context: &mut Context<'_>) {
        if !self.is_log_writer_due() {
            return;
        }
        let Some(log_writer) = self.life.log_writer_mut() else { return };
        let (node, handle, session) = (&self.context, &self.handle, &self.session);
        let replay_buffer = || {
            let buffer = session.replay_buffer();
            (buffer.first, buffer.entries)
        };
        let mut outcomes = Vec::new();
        let snapshot = || node.lease_snapshot(&handle.session);
        log_writer.poll(context, &node.store, snapshot, replay_buffer, &mut outcomes);
        for outcome in outcomes {
            match outcome {
                Outcome::Through(through) => self.following.push(Event::Appended { through }),
                Outcome::Saved(version) => self.following.push(Event::Saved { version }),
                Outcome::Reclaimed(token) => {
                    let owner_tag = OwnerTag(token.random);
                    // Every event after the claim gets an id under the new token.
                    self.following.retain(|event| !matches!(event, Event::Reclaimed { .. }));
                    self.following.insert(0, Event::Reclaimed { owner_tag });
                }
                Outcome::Deposed => self.depose(),
                Outcome::Released => self.set_over(),
                Outcome::Ended => self.end_is_durable(),
            }
        }
    }

    /// As `poll_log_writer`, but with a waker that does nothing. A store in this process completes
    /// at once, so one poll is sufficient for it.
    pub(super) fn poll_log_writer_now(&mut self) {
        // The pump polls the log writer again, with its own waker, before it waits.
        self.poll_log_writer(&mut Context::from_waker(Waker::noop()));
    }

    fn receive(&mut self, event: Event, sink: Option<Sink>) {
        let now = clock::now();
        if sink.is_some() {
            self.touched = now;
        }
        if let Some(departure) = self.life.departure() {
            return self.receive_while_leaving(departure, event, sink);
        }
        // An event that follows comes first: a claim gives every later entry another owner tag.
        let is_next =
            self.following.is_empty() && self.deferred.is_empty() && self.parked_effects.is_empty();
        if is_next && self.may_act() {
            self.add_sink(sink, now);
            return self.handle_at(now, event);
        }
        let deferred_max = self.context.settings.mailbox_max.max(1);
        match self.deferred.push(event, sink, now, deferred_max) {
            Ok(expires) => {
                self.timer.fire_by(Some(expires), now);
                self.mark_dirty();
                self.run_until_idle(now);
            }
            Err(sink) => sink.abandon(Refusal::Moved),
        }
    }
}

impl Actor for SessionActor {
    type Context = actix::Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.spawn(Pump);
        self.run_guarded(context, |actor| {
            if let Some(pending_record) = actor.life.pending_record() {
                match pending_record.first.take() {
                    Some(event) => actor.step(clock::now(), event),
                    // A duplex client receives the session's id before it sends a message.
                    None => actor.create_record(),
                }
            }
            actor.run_until_idle(clock::now());
        });
    }
}

impl Handler<SessionMessage> for SessionActor {
    type Result = ();

    fn handle(&mut self, message: SessionMessage, context: &mut Self::Context) {
        self.run_guarded(context, |actor| match message {
            SessionMessage::Event { event, sink } => actor.receive(event, sink),
            SessionMessage::Wake => {
                actor.mark_dirty();
                actor.run_until_idle(clock::now());
            }
            SessionMessage::Drain => {
                actor.is_draining = true;
                actor.run_until_idle(clock::now());
            }
            SessionMessage::Relieve(relief) => actor.relieve(relief),
            SessionMessage::Evict => {
                if !actor.session.is_live() {
                    actor.receive(Event::Stopping, None);
                }
            }
            SessionMessage::Tell(sender) => {
                // An error means that the operator does not wait any more.
                let _ = sender.send(actor.activity());
            }
            SessionMessage::CancelStop => {
                actor.is_draining = false;
                actor.receive(Event::HandOverCancelled, None);
            }
        });
    }
}

/// Removes the first element. The vector is short.
fn take_first<T>(all: &mut ThinVec<T>) -> Option<T> {
    (!all.is_empty()).then(|| all.remove(0))
}

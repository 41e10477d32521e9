//! The actor of one live session: the only place that waits and acts on the session's behalf.
//!
//! The actor decides nothing. It passes events to the [`Session`] and performs the effects that
//! the session returns (`performing`), until the session leaves this owner (`leaving`). It never
//! blocks: connections are bounded queues, and links and the store are polled. A panic in the
//! actor ends this session and no other.
//!
//! It acts only while this node owns the session. Messages that arrive at other times are
//! deferred, and handled when the node owns the session again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Handler, Message, WrapFuture};
use backends::{Link, LinkEvent};
use conversation::{Effect, Event, Millis, OwnerTag, Refusal, Session};
use ownership::lapse::Lapse;
use ownership::machine::Outcome;
use thin_vec::ThinVec;

use crate::alarm::Alarm;
use crate::clock;
use crate::handle::Node;
use crate::leaving::Leaving;
use crate::log_writer::LogWriter;
use crate::metrics::{self, End, Hold};
use crate::pump::Pump;
use crate::record::PendingRecord;
use crate::registry::Registration;
use crate::session_handle::SessionHandle;
use crate::sink::Sink;

/// The shortest wait before the store is asked again, in milliseconds.
const STORE_WAIT_MIN: u64 = 20;

/// How long a message waits for the node to own the session again, in milliseconds. Then its
/// routed request looks for an owner; it is held no longer than any other request.
const DEFERRED_WAIT: u64 = 500;

/// A message that came while the node did not own the session.
pub(crate) struct DeferredMessage {
    event: Event,
    pub(crate) sink: Option<Sink>,
    came: Millis,
}

/// A message to a session's actor.
pub(crate) enum SessionMessage {
    /// An event for the session; `sink` is the connection that the event names.
    Event {
        /// The event.
        event: Event,
        /// The connection that waits for the answer.
        sink: Option<Sink>,
    },
    /// Look at the flags of the handle, and whether the node still owns the session.
    Wake,
    /// End as soon as no request is in flight.
    Drain,
}

impl SessionMessage {
    /// An event whose answer no connection waits for.
    pub(crate) fn event(event: Event) -> Self {
        Self::Event { event, sink: None }
    }
}

impl Message for SessionMessage {
    type Result = ();
}

/// One live session.
pub(crate) struct SessionActor {
    pub(crate) node: Arc<Node>,
    pub(crate) handle: Arc<SessionHandle>,
    /// Apart, so that neither it nor this is rounded up by a quarter for the other's sake.
    pub(crate) session: Box<Session>,
    /// What is to be recorded once the handshake has succeeded.
    pub(crate) pending_record: Option<Box<PendingRecord>>,
    /// Unfinished connections. Few: the session bounds them.
    pub(crate) sinks: ThinVec<Sink>,
    pub(crate) link: Option<Link>,
    /// The link takes nothing any more.
    pub(crate) link_closed: bool,
    /// From the record on until it is over.
    pub(crate) log_writer: Option<LogWriter>,
    pub(crate) alarm: Alarm,
    /// Events that follow from the effects performed and from writing the log. Bounded by them.
    pub(crate) following: ThinVec<Event>,
    /// Effects that wait until the record is made, or until the node owns the session;
    /// meanwhile nothing else happens.
    pub(crate) held: ThinVec<Effect>,
    /// Messages that came while the node did not own the session, oldest first. At most
    /// `mailbox_max`; one more, and one that has waited too long, is refused with `Moved`.
    pub(crate) deferred_messages: ThinVec<DeferredMessage>,
    pub(crate) registration: Option<Registration>,
    /// It ends as soon as no request is in flight.
    draining: bool,
    /// Since when it may not act.
    lapse: Lapse,
    /// It has been due for something since the node ceased to own it.
    due: bool,
    /// When a client last came.
    pub(crate) touched: Millis,
    /// Requests in flight, as they were counted last.
    exchanges: usize,
    /// It is over, and the store is being told.
    pub(crate) leaving: Option<Leaving>,
    pub(crate) over: bool,
}

/// What a session's actor is made of.
pub(crate) struct Parts {
    pub(crate) node: Arc<Node>,
    pub(crate) handle: Arc<SessionHandle>,
    pub(crate) session: Session,
    pub(crate) beginning: Beginning,
    pub(crate) registration: Registration,
    pub(crate) now: Millis,
}

/// How it begins here.
pub(crate) enum Beginning {
    /// It is new.
    New { pending_record: Box<PendingRecord>, sink: Sink },
    /// It was claimed, and this is to be done about what had begun.
    Claimed { log_writer: Box<LogWriter>, effects: Vec<Effect> },
}

impl SessionActor {
    pub(crate) fn new(parts: Parts) -> Self {
        let mut actor = Self {
            node: parts.node,
            handle: parts.handle,
            session: Box::new(parts.session),
            pending_record: None,
            sinks: ThinVec::new(),
            link: None,
            link_closed: false,
            log_writer: None,
            alarm: Alarm::new(parts.now),
            following: ThinVec::new(),
            held: ThinVec::new(),
            deferred_messages: ThinVec::new(),
            registration: Some(parts.registration),
            draining: false,
            lapse: Lapse::default(),
            due: false,
            touched: parts.now,
            exchanges: 0,
            leaving: None,
            over: false,
        };
        match parts.beginning {
            Beginning::New { pending_record, mut sink } => {
                sink.take();
                actor.sinks.push(sink);
                actor.pending_record = Some(pending_record);
            }
            Beginning::Claimed { log_writer, effects } => {
                (actor.log_writer, actor.held) = (Some(*log_writer), effects.into());
            }
        }
        actor
    }

    /// Lives through something. A panic is the end of the session, and of nothing else:
    /// it must not reach actix, which would poll the actor again while unwinding.
    pub(crate) fn guarded(
        &mut self,
        context: &mut actix::Context<Self>,
        live: impl FnOnce(&mut Self),
    ) {
        if self.over {
            return;
        }
        if catch_unwind(AssertUnwindSafe(|| live(self))).is_err() {
            tracing::error!(session = ?self.handle.session, "a session panicked and was ended");
            self.abandon(End::Panicked);
        }
        if self.over {
            context.stop();
        } else {
            self.await_record(context);
        }
    }

    /// Takes nothing further until the record is made, if one is being made.
    fn await_record(&mut self, context: &mut actix::Context<Self>) {
        let creation =
            self.pending_record.as_mut().and_then(|pending_record| pending_record.creation.take());
        let Some(creation) = creation else { return };
        let made = creation.into_actor(self).map(|came, actor, context| {
            actor.guarded(context, |actor| {
                actor.recorded(came);
                actor.go_on(clock::now());
            });
        });
        context.wait(made);
    }

    /// May anything be done for the session now? No round trip.
    fn may_act(&mut self) -> bool {
        self.observe_failovers();
        let lease_generation = self.node.valid_lease_generation();
        let snapshot = || self.node.lease_snapshot(&self.handle.session);
        self.log_writer.as_ref().map_or(lease_generation.is_some(), |log_writer| {
            log_writer.may_act(lease_generation, snapshot)
        })
    }

    fn observe_failovers(&mut self) {
        if let Some(log_writer) = &mut self.log_writer {
            log_writer.observe(self.node.newest_failover_generation(), || {
                self.node.lease_snapshot(&self.handle.session)
            });
        }
    }

    /// There may be something to write to the store.
    fn mark_dirty(&mut self) {
        self.log_writer.iter_mut().for_each(LogWriter::mark_dirty);
    }

    /// Brings one event to the session, and everything that follows from it.
    pub(crate) fn turn(&mut self, event: Event) {
        let now = clock::now();
        self.step(now, event);
        self.go_on(now);
    }

    /// What happened next outside, if anything has that the session may live through now.
    pub(crate) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        self.observe_failovers();
        self.keep(context);
        if self.over {
            return Poll::Pending;
        }
        let wake_at = self.log_writer.as_ref().and_then(LogWriter::wake_at);
        if let Some(at) = wake_at {
            let now = clock::now();
            self.alarm.ring_by(Some(Millis(at).max(now.plus(STORE_WAIT_MIN))), now);
        }
        let may_act = self.may_act();
        if self.leaving.is_some() || !may_act {
            if !may_act {
                self.lapse.lasts(clock::now().0);
            }
            self.poll_idly(context);
            return Poll::Pending;
        }
        if self.lapse.over() {
            // What has waited until the owner may act comes first. That may have polled the store
            // without this task's waker.
            self.go_on(clock::now());
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(event) = take_first(&mut self.following) {
            return Poll::Ready(event);
        }
        if self.alarm.poll(context).is_ready() {
            self.mark_dirty();
            return Poll::Ready(Event::DeadlinePassed);
        }
        self.poll_link(context)
    }

    fn poll_link(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let Some(link) = &mut self.link else { return Poll::Pending };
        match link.events.poll_next(context) {
            Poll::Ready(Some(LinkEvent::Up)) => Poll::Ready(Event::LinkUp),
            Poll::Ready(Some(LinkEvent::Message { message, about })) => {
                Poll::Ready(Event::ServerMessage { message, about })
            }
            Poll::Ready(Some(LinkEvent::Down { reason })) => Poll::Ready(self.link_down(reason)),
            Poll::Pending if !self.link_closed => Poll::Pending,
            // It takes nothing any more, and what it had said is heard.
            Poll::Ready(None) | Poll::Pending => {
                Poll::Ready(self.link_down("the server is gone".to_owned()))
            }
        }
    }

    fn link_down(&mut self, reason: String) -> Event {
        self.link = None;
        Event::LinkDown { reason }
    }

    /// Waits while the node may not act for the session. Streams stay open. When the timer
    /// fires, the session is marked as due, so that `keep` has it claimed.
    fn poll_idly(&mut self, context: &mut Context<'_>) {
        self.give_up_waiting();
        while self.alarm.poll(context).is_ready() {
            let now = clock::now();
            if self.leaves_too_long(now) {
                return;
            }
            self.due = true;
            self.mark_dirty();
            // Dropped unread, it says itself that nothing was done.
            self.deferred_messages.retain(|deferred| {
                deferred.sink.is_none() || deferred.came.plus(DEFERRED_WAIT) > now
            });
            let next = now.plus(self.node.limits.keepalive_secs.max(1) * 1_000);
            let wake_at = self.log_writer.as_ref().and_then(LogWriter::wake_at).map(Millis);
            let oldest = self.deferred_messages.iter().find(|deferred| deferred.sink.is_some());
            let wake_at =
                wake_at.into_iter().chain(oldest.map(|deferred| deferred.came.plus(DEFERRED_WAIT)));
            let next = wake_at.min().map_or(next, |at| at.max(now.plus(STORE_WAIT_MIN)).min(next));
            self.alarm.ring_by(Some(next), now);
            self.give_up_waiting();
            self.keep(context);
        }
    }

    /// Gives up requests of which the client has received nothing, where the node has not been
    /// allowed to act for as long as requests are held (`hold_ms`). What they began goes on once
    /// the node may act again. Streams stay open: their clients can resume them elsewhere.
    fn give_up_waiting(&mut self) {
        let hold = self.node.settings.hold();
        let hold_ms = u64::try_from(hold.as_millis()).unwrap_or(u64::MAX);
        let Some(until) = self.lapse.waits_until(hold_ms).map(Millis) else { return };
        let mut waiting = self.sinks.iter().filter(|sink| !sink.is_open());
        if self.leaving.is_some() || waiting.next().is_none() {
            return;
        }
        let now = clock::now();
        if now < until {
            self.alarm.ring_by(Some(until), now);
            return;
        }
        let (open, waiting) = std::mem::take(&mut self.sinks).into_iter().partition(Sink::is_open);
        self.sinks = open;
        let waiting: ThinVec<Sink> = waiting;
        for sink in waiting {
            metrics::held(Hold::Expired);
            self.following.push(Event::SinkClosed { sink: sink.id });
            sink.lose_lease(hold.as_secs());
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Does it wait until its record is made?
    pub(crate) fn is_being_recorded(&self) -> bool {
        self.pending_record.as_ref().is_some_and(|pending_record| pending_record.creation.is_some())
    }

    /// Lives through what follows from what has happened, as long as it may.
    pub(crate) fn go_on(&mut self, now: Millis) {
        while !self.over && self.leaving.is_none() && !self.is_being_recorded() && self.may_act() {
            self.due = false;
            if !self.held.is_empty() {
                let held = std::mem::take(&mut self.held);
                held.into_iter().for_each(|effect| self.perform(effect));
            } else if let Some(event) = take_first(&mut self.following) {
                self.step(now, event);
            } else if let Some(DeferredMessage { event, sink, .. }) =
                take_first(&mut self.deferred_messages)
            {
                self.admit(event, sink, now);
            } else if self.handle.has_any_left() {
                self.miss_readers();
            } else if self.draining && self.session.exchanges() == 0 {
                self.step(now, Event::Stopping);
            } else {
                break;
            }
        }
        self.count_exchanges();
        self.give_back();
        self.alarm.ring_by(self.session.deadline(), now);
    }

    /// Room that a quiet session does not need.
    fn give_back(&mut self) {
        if self.following.is_empty() {
            self.following = ThinVec::new();
        }
        if self.deferred_messages.is_empty() {
            self.deferred_messages = ThinVec::new();
        }
        if self.sinks.is_empty() {
            self.sinks = ThinVec::new();
        }
    }

    pub(crate) fn count_exchanges(&mut self) {
        let is_gone = self.over || self.leaving.is_some();
        let exchanges = if is_gone { 0 } else { self.session.exchanges() };
        if exchanges != self.exchanges {
            metrics::EXCHANGES.add(exchanges as i64 - self.exchanges as i64);
            self.exchanges = exchanges;
        }
    }

    /// Brings an event to the session.
    fn admit(&mut self, event: Event, sink: Option<Sink>, now: Millis) {
        if let Some(mut sink) = sink {
            // A reader that left before its sink arrived here was not found by an earlier look
            // for readers that have left.
            if sink.is_left() {
                self.handle.note_left();
            }
            sink.take();
            if self.sinks.is_empty() {
                // Most have one at a time.
                self.sinks.reserve_exact(1);
            }
            self.sinks.push(sink);
        }
        self.step(now, event);
    }

    /// Tells the session of each reader that has left.
    fn miss_readers(&mut self) {
        let following = &mut self.following;
        self.sinks.retain(|sink| {
            let left = sink.is_left();
            if left {
                following.push(Event::SinkClosed { sink: sink.id });
            }
            !left
        });
    }

    /// Is the log writer to be polled now? A session that its node may have lost is claimed anew
    /// if a request, a stream or a timer waits for it, or if the store may have forgotten it;
    /// else when the next message for it arrives.
    fn is_to_be_kept(&mut self) -> bool {
        match &self.log_writer {
            None => return false,
            Some(log_writer) if log_writer.is_busy() => return true,
            Some(log_writer) if !log_writer.is_dirty() => return false,
            Some(_) => {}
        }
        let waited_for = self.due
            || self.leaving.is_some()
            || !self.deferred_messages.is_empty()
            || !self.held.is_empty()
            || !self.sinks.is_empty()
            || self.session.exchanges() > 0;
        if waited_for || self.may_act() {
            return true;
        }
        self.due = self.log_writer.as_ref().is_some_and(|log_writer| !log_writer.is_sure());
        self.due
    }

    /// Goes on writing what the session says, and takes note of what came of it.
    pub(crate) fn keep(&mut self, context: &mut Context<'_>) {
        if !self.is_to_be_kept() {
            return;
        }
        let Some(log_writer) = &mut self.log_writer else { return };
        let (node, handle, session) = (&self.node, &self.handle, &self.session);
        let ring = || {
            let ring = session.ring();
            (ring.first, ring.entries)
        };
        let mut outcomes = Vec::new();
        let snapshot = || node.lease_snapshot(&handle.session);
        log_writer.poll(context, &node.store, snapshot, ring, &mut outcomes);
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
                Outcome::Released => self.part(),
                Outcome::Ended => self.end_is_durable(),
            }
        }
    }

    /// As `keep`, but with a waker that does nothing. A store in this process answers at once, so
    /// one poll is enough for it.
    pub(crate) fn keep_at_once(&mut self) {
        // The pump calls `keep` again, with its own waker, before it waits.
        self.keep(&mut Context::from_waker(Waker::noop()));
    }

    fn receive(&mut self, event: Event, sink: Option<Sink>) {
        let now = clock::now();
        if sink.is_some() {
            self.touched = now;
        }
        if let Some(leaving) = self.leaving {
            self.receive_late(leaving, event, sink);
        } else if self.deferred_messages.is_empty() && self.held.is_empty() && self.may_act() {
            self.admit(event, sink, now);
            self.go_on(now);
        } else if self.deferred_messages.len() < self.node.settings.mailbox_max.max(1) {
            self.deferred_messages.push(DeferredMessage { event, sink, came: now });
            self.alarm.ring_by(Some(now.plus(DEFERRED_WAIT)), now);
            self.mark_dirty();
            self.go_on(now);
        } else if let Some(sink) = sink {
            sink.abandon(Refusal::Moved);
        }
    }
}

impl Actor for SessionActor {
    type Context = actix::Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.spawn(Pump);
        let first =
            self.pending_record.as_mut().and_then(|pending_record| pending_record.first.take());
        self.guarded(context, |actor| {
            if let Some(event) = first {
                actor.step(clock::now(), event);
            } else if actor.pending_record.is_some() {
                // A duplex client learns the session's id before it says anything.
                actor.record();
            }
            actor.go_on(clock::now());
        });
    }
}

impl Handler<SessionMessage> for SessionActor {
    type Result = ();

    fn handle(&mut self, message: SessionMessage, context: &mut Self::Context) {
        self.guarded(context, |actor| match message {
            SessionMessage::Event { event, sink } => actor.receive(event, sink),
            SessionMessage::Wake => {
                actor.mark_dirty();
                actor.go_on(clock::now());
            }
            SessionMessage::Drain => {
                actor.draining = true;
                actor.go_on(clock::now());
            }
        });
    }
}

/// The oldest of a few.
fn take_first<T>(all: &mut ThinVec<T>) -> Option<T> {
    (!all.is_empty()).then(|| all.remove(0))
}

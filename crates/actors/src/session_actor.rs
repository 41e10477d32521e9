//! One live session: the only place that waits for it and acts on its behalf.
//!
//! The actor decides nothing. It brings events to the [`Session`] and performs what the
//! session asks for. It waits for nobody: connections are bounded queues, links and the
//! store are polled. Whatever panics in here ends this session and no other.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use actix::{Actor, ActorContext, ActorFutureExt, AsyncContext, Handler, Message, WrapFuture};
use backends::{Link, LinkEvent, SendError};
use bytes::Bytes;
use conversation::{Answer, Effect, Event, Millis, Refusal, Session, SinkId};
use protocol::SessionId;
use store::{Error, Owner};
use tokio::sync::oneshot;

use crate::alarm::Alarm;
use crate::clock;
use crate::door::Door;
use crate::handle::Node;
use crate::log_writer::{self, LogWriter};
use crate::metrics::{self, End};
use crate::pump::Pump;
use crate::record::{self, Draft};
use crate::registry::{Enrolled, Seat};
use crate::sink::{self, Sink};

/// Most effects a quiet session keeps room for.
const EFFECTS_KEPT_MAX: usize = 16;

/// What comes through the door.
pub(crate) enum Mail {
    /// Something happened; `sink` is the connection that the event names.
    Happened {
        /// What.
        event: Event,
        /// The connection that waits for what comes of it.
        sink: Option<Sink>,
    },
    /// Look at the notes at the door.
    Knock,
    /// End as soon as no request is in flight.
    Drain,
}

impl Message for Mail {
    type Result = ();
}

/// The future of a record that is being made.
type Creation = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// One live session.
pub(crate) struct SessionActor {
    id: SessionId,
    node: Arc<Node>,
    door: Arc<Door>,
    session: Session,
    tenant: Arc<str>,
    owner: Owner,
    /// What is to be recorded once the handshake has succeeded.
    draft: Option<Draft>,
    /// What it begins with.
    first: Option<Event>,
    /// Who waits for the record before anyone is told of the session.
    recorded: Option<oneshot::Sender<()>>,
    /// Unfinished connections. Few: the session bounds them.
    sinks: Vec<Sink>,
    link: Option<Link>,
    /// The link takes nothing any more.
    deaf: bool,
    /// From the record on.
    log: Option<LogWriter>,
    alarm: Alarm,
    /// Reused by every step.
    effects: Vec<Effect>,
    /// What came of performing effects. Bounded by them.
    following: VecDeque<Event>,
    /// Effects that wait until the record is made; meanwhile nothing else happens.
    held: Vec<Effect>,
    creation: Option<Creation>,
    enrolled: Option<Enrolled>,
    seat: Option<Seat>,
    /// It ends as soon as no request is in flight.
    draining: bool,
    /// Requests in flight, as they were counted last.
    exchanges: usize,
    over: bool,
}

/// What a session's actor is made of.
pub(crate) struct Parts {
    pub(crate) id: SessionId,
    pub(crate) node: Arc<Node>,
    pub(crate) door: Arc<Door>,
    pub(crate) session: Session,
    pub(crate) draft: Draft,
    pub(crate) first: Option<Event>,
    pub(crate) recorded: Option<oneshot::Sender<()>>,
    pub(crate) sink: Sink,
    pub(crate) enrolled: Enrolled,
    pub(crate) seat: Seat,
    pub(crate) now: Millis,
}

impl SessionActor {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            id: parts.id,
            node: parts.node,
            door: parts.door,
            session: parts.session,
            tenant: Arc::clone(&parts.draft.tenant),
            owner: parts.draft.owner,
            draft: Some(parts.draft),
            first: parts.first,
            recorded: parts.recorded,
            sinks: vec![parts.sink],
            link: None,
            deaf: false,
            log: None,
            alarm: Alarm::new(parts.now),
            effects: Vec::new(),
            following: VecDeque::new(),
            held: Vec::new(),
            creation: None,
            enrolled: Some(parts.enrolled),
            seat: Some(parts.seat),
            draining: false,
            exchanges: 0,
            over: false,
        }
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
            tracing::error!(session = ?self.id, "a session panicked and was ended");
            self.end(End::Panicked);
        }
        if self.over {
            context.stop();
        } else {
            self.await_record(context);
        }
    }

    /// Takes nothing further until the record is made, if one is being made.
    fn await_record(&mut self, context: &mut actix::Context<Self>) {
        let Some(creation) = self.creation.take() else { return };
        let made = creation.into_actor(self).map(Self::go_on_recorded);
        context.wait(made);
    }

    /// Brings one event to the session, and everything that follows from it.
    pub(crate) fn turn(&mut self, event: Event) {
        let now = clock::now();
        self.step(now, event);
        self.go_on(now);
    }

    /// What happened next outside, if anything has.
    pub(crate) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if let Some(log) = &mut self.log
            && let Poll::Ready(wrote) = log.poll(context)
        {
            match wrote {
                log_writer::Wrote::Through(through) => {
                    return Poll::Ready(Event::Appended { through });
                }
                log_writer::Wrote::Deposed => {
                    self.end(End::Deposed);
                    return Poll::Pending;
                }
            }
        }
        if self.alarm.poll(context).is_ready() {
            return Poll::Ready(Event::DeadlinePassed);
        }
        let Some(link) = &mut self.link else { return Poll::Pending };
        match link.events.poll_next(context) {
            Poll::Ready(Some(LinkEvent::Up)) => Poll::Ready(Event::LinkUp),
            Poll::Ready(Some(LinkEvent::Said { message, about })) => {
                Poll::Ready(Event::Said { message, about })
            }
            Poll::Ready(Some(LinkEvent::Down { reason })) => Poll::Ready(self.link_down(reason)),
            Poll::Pending if !self.deaf => Poll::Pending,
            // It takes nothing any more, and what it had said is heard.
            Poll::Ready(None) | Poll::Pending => {
                Poll::Ready(self.link_down("the server is gone".to_owned()))
            }
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    fn link_down(&mut self, reason: String) -> Event {
        self.link = None;
        Event::LinkDown { reason }
    }

    /// Lives through what follows from what has happened.
    fn go_on(&mut self, now: Millis) {
        while !self.over && self.creation.is_none() {
            if let Some(event) = self.following.pop_front() {
                self.step(now, event);
            } else if self.door.has_any_left() {
                self.miss_readers();
            } else if self.log.as_mut().is_some_and(|log| log.is_due(now)) {
                self.write_log();
            } else if self.draining && self.session.exchanges() == 0 {
                self.step(now, Event::Stopping);
            } else {
                self.count_exchanges();
                self.alarm.ring_by(self.session.deadline(), now);
                return;
            }
        }
    }

    fn count_exchanges(&mut self) {
        let exchanges = if self.over { 0 } else { self.session.exchanges() };
        if exchanges != self.exchanges {
            metrics::EXCHANGES.add(exchanges as i64 - self.exchanges as i64);
            self.exchanges = exchanges;
        }
    }

    fn step(&mut self, now: Millis, event: Event) {
        let mut effects = std::mem::take(&mut self.effects);
        self.session.step(now, event, &mut effects);
        if self.draft.is_some() && effects.iter().any(needs_record) {
            self.record();
            if self.creation.is_some() {
                self.held = effects;
                return;
            }
        }
        for effect in effects.drain(..) {
            self.perform(effect);
        }
        if effects.capacity() <= EFFECTS_KEPT_MAX {
            self.effects = effects;
        }
    }

    fn perform(&mut self, effect: Effect) {
        if self.over {
            return;
        }
        match effect {
            Effect::Answer { sink, answer } => {
                if let Some(sink) = self.take_sink(sink) {
                    sink.answer(answer);
                }
            }
            Effect::Open { sink, welcome, at } => self.write(sink, |sink| sink.open(welcome, at)),
            Effect::Write { sink, frame } => self.write(sink, |sink| sink.write(frame)),
            Effect::Finish { sink, ending } => {
                if let Some(sink) = self.take_sink(sink) {
                    sink.finish(ending);
                }
            }
            Effect::OpenLink => self.open_link(),
            // What the old link still has to say is dropped with it.
            Effect::CloseLink => self.link = None,
            Effect::Send(message) => self.send(message),
            Effect::Append { first, floor, entries } => self.append(first, floor, entries),
            Effect::Save { .. } => {}
            Effect::Over { cause } => self.end(End::Over(cause)),
            Effect::Tell(fact) => metrics::tell(&fact),
        }
    }

    fn write(&mut self, id: SinkId, write: impl FnOnce(&Sink) -> sink::Wrote) {
        let Some(sink) = self.sinks.iter().find(|sink| sink.id == id) else { return };
        if write(sink) == sink::Wrote::Cut {
            self.take_sink(id);
            self.following.push_back(Event::SinkClosed { sink: id });
        }
    }

    fn take_sink(&mut self, id: SinkId) -> Option<Sink> {
        let index = self.sinks.iter().position(|sink| sink.id == id)?;
        Some(self.sinks.swap_remove(index))
    }

    /// Tells the session of each reader that has left.
    fn miss_readers(&mut self) {
        let following = &mut self.following;
        self.sinks.retain(|sink| {
            let left = sink.is_left();
            if left {
                following.push_back(Event::SinkClosed { sink: sink.id });
            }
            !left
        });
    }

    fn open_link(&mut self) {
        match self.node.backends.of(&self.tenant) {
            Some(backend) => {
                self.link = Some(backend.open(&self.id));
                self.deaf = false;
            }
            None => {
                let reason = "the tenant has no server; configure a backend for it".to_owned();
                self.following.push_back(Event::LinkDown { reason });
            }
        }
    }

    fn send(&mut self, message: protocol::Message) {
        let Some(link) = &self.link else { return };
        match link.sender.send(message.clone()) {
            Ok(()) => {}
            Err(SendError::Full) => self.following.push_back(Event::Unsent { message }),
            // What the server said before it went comes first, its last word included.
            Err(SendError::Down) => self.deaf = true,
        }
    }

    fn append(&mut self, first: u64, floor: u64, entries: Vec<Bytes>) {
        if let Some(log) = &mut self.log {
            log.push(first, floor, entries);
            self.write_log();
        }
    }

    /// Writes what can be written at once. A store in this process needs no more than that.
    fn write_log(&mut self) {
        let Some(log) = &mut self.log else { return };
        // The pump asks again before anyone waits.
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(wrote) = log.poll(&mut context) {
            match wrote {
                log_writer::Wrote::Through(through) => {
                    self.following.push_back(Event::Appended { through });
                }
                log_writer::Wrote::Deposed => {
                    self.end(End::Deposed);
                    return;
                }
            }
        }
    }

    /// Makes the record: before anyone learns that there is a session.
    fn record(&mut self) {
        let Some(draft) = &self.draft else { return };
        let record = draft.record(self.session.revision());
        let settings = &self.node.settings;
        let creation: Creation = Box::pin(record::create(
            Arc::clone(&self.node.store),
            self.id.clone(),
            record,
            settings.record_ttl(),
            std::time::Duration::from_secs(settings.store_wait_secs),
        ));
        match at_once(creation) {
            Ok(came) => self.recorded(came),
            Err(creation) => self.creation = Some(creation),
        }
    }

    fn recorded(&mut self, came: Result<(), Error>) {
        if let Err(error) = came {
            tracing::error!(session = ?self.id, %error, "a session could not be recorded");
            self.end(End::Unrecorded);
            return;
        }
        let Some(draft) = self.draft.take() else { return };
        if let Some(recorded) = self.recorded.take() {
            // Whoever does not wait any more has left the connection, too.
            let _ = recorded.send(());
        }
        self.log = Some(LogWriter::new(
            Arc::clone(&self.node.store),
            self.id.clone(),
            Box::new(draft.record(self.session.revision())),
            self.node.settings.record_ttl(),
            clock::now(),
        ));
    }

    /// The record that everything waited for.
    fn go_on_recorded(
        came: Result<(), Error>,
        actor: &mut Self,
        context: &mut actix::Context<Self>,
    ) {
        actor.guarded(context, |actor| {
            actor.recorded(came);
            for effect in std::mem::take(&mut actor.held) {
                actor.perform(effect);
            }
            actor.go_on(clock::now());
        });
    }

    /// The end: nobody is left waiting, and nothing is left behind.
    fn end(&mut self, end: End) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        metrics::ended(end);
        self.count_exchanges();
        tracing::debug!(session = ?self.id, ?end, "a session ended");
        self.enrolled = None;
        self.recorded = None;
        self.link = None;
        self.following.clear();
        self.held.clear();
        let is_known = self.draft.is_none() && end != End::Deposed;
        let refusal = if is_known { Refusal::UnknownSession } else { Refusal::Unavailable };
        // A record that could not be made may be there all the same.
        let is_recorded = is_known || end == End::Unrecorded;
        for sink in self.sinks.drain(..) {
            sink.abandon(refusal.clone());
        }
        let seat = self.seat.take();
        if !is_recorded {
            return;
        }
        let ended = Box::pin(record::end(
            Arc::clone(&self.node.store),
            self.id.clone(),
            self.owner,
            self.node.settings.tombstone_ttl(),
            seat,
        ));
        if let Err(ended) = at_once(ended) {
            actix_rt::spawn(ended);
        }
    }
}

impl Actor for SessionActor {
    type Context = actix::Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.spawn(Pump);
        let first = self.first.take();
        self.guarded(context, |actor| match first {
            Some(event) => actor.turn(event),
            // A duplex client learns the session's id before it says anything.
            None => {
                actor.record();
                actor.go_on(clock::now());
            }
        });
    }
}

impl Handler<Mail> for SessionActor {
    type Result = ();

    fn handle(&mut self, mail: Mail, context: &mut Self::Context) {
        self.guarded(context, |actor| match mail {
            Mail::Happened { event, sink } => {
                if let Some(sink) = sink {
                    // Whoever left on the way was not missed by any earlier look.
                    if sink.is_left() {
                        actor.door.note_left();
                    }
                    actor.sinks.push(sink);
                }
                actor.turn(event);
            }
            Mail::Knock => actor.go_on(clock::now()),
            Mail::Drain => {
                actor.draining = true;
                actor.go_on(clock::now());
            }
        });
    }
}

/// Whoever sees this effect performed knows of the session.
fn needs_record(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Answer { answer: Answer::Welcome(_), .. }
            | Effect::Open { welcome: true, .. }
            | Effect::Append { .. }
    )
}

/// What a future comes to, if that takes no waiting; else the future, to be polled again.
fn at_once<F: Future + Unpin>(mut future: F) -> Result<F::Output, F> {
    match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err(future),
    }
}

//! Performs the effects of a session: writes replies, sends messages to the server, and hands
//! entries and states to the log writer.

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use actix::{ActorFutureExt, AsyncContext, WrapFuture};
use backends::{Link, SavedLink};
use conversation::{Definition, Effect, Event, Millis, SinkId};
use fairness::compute;
use ownership::machine::Ownership;
use store::Error;
use telemetry::{EnteredSpan, enter_span};

use super::actor::SessionActor;
use super::life::{Life, Recorded};
use super::link_state::LinkState;
use super::log_writer::LogWriter;
use super::long_step::{LongStep, long_bytes};
use super::record::{self, Creation};
use crate::clock;
use crate::metrics::{self, End};
use crate::reply::{Sink, Wrote};
use crate::session_bytes::charge;

/// The largest capacity that a thread keeps for effects.
const EFFECTS_KEPT_MAX: usize = 64;

thread_local! {
    /// A buffer for the effects of one step, shared by the sessions of the thread.
    static EFFECTS: Cell<Vec<Effect>> = const { Cell::new(Vec::new()) };
}

impl SessionActor {
    /// Passes one event to the session, and runs the resulting effects and events.
    pub(super) fn handle_event(&mut self, event: Event) {
        let now = clock::now();
        if matches!(event, Event::DeadlinePassed) {
            // The session may fall asleep by this event.
            self.judge_store(now);
        }
        self.handle_at(now, event);
    }

    /// Passes one event of this time to the session: a long message on another thread.
    pub(super) fn handle_at(&mut self, now: Millis, event: Event) {
        if let Some(bytes) = long_bytes(&event) {
            return self.begin_long_step(now, event, bytes);
        }
        self.step(now, event);
        self.run_until_idle(now);
    }

    /// Passes an event with so many bytes to the session on another thread.
    pub(super) fn begin_long_step(&mut self, now: Millis, event: Event, bytes: usize) {
        let (event, _within) = self.receive_in_span(event);
        let Some(mut session) = self.session.take() else { return };
        let stepped = compute(self.handle.tenant(), move || {
            let mut effects = Vec::new();
            let step = AssertUnwindSafe(|| session.step(now, event, &mut effects));
            let effects = catch_unwind(step).is_ok().then_some(effects);
            (session, effects)
        });
        self.long_step = Some(LongStep { stepped, held: charge(bytes, &self.handle.share) });
    }

    /// Handles no further message until a step on another thread is done, if there is one.
    pub(super) fn await_long_step(&mut self, context: &mut actix::Context<Self>) {
        let Some(LongStep { stepped, held }) = self.long_step.take() else { return };
        let stepped = stepped.into_actor(self).map(move |(session, effects), actor, context| {
            drop(held);
            actor.session.put_back(session);
            actor.run_guarded(context, |actor| match effects {
                Some(effects) => actor.long_step_done(effects),
                None => {
                    let session = &actor.handle.session;
                    tracing::error!(?session, "session panicked and was ended");
                    actor.abandon(End::Panicked);
                }
            });
        });
        context.wait(stepped);
    }

    /// Performs the effects, if the node may still act for the session; otherwise once it may.
    fn long_step_done(&mut self, effects: Vec<Effect>) {
        if self.creates_record_for(&effects) {
            self.parked_effects = effects.into();
            return;
        }
        self.parked_effects.extend(effects);
        self.run_until_idle(clock::now());
    }

    /// Passes one event to the session and performs the effects.
    pub(super) fn step(&mut self, now: Millis, event: Event) {
        let (event, _within) = self.receive_in_span(event);
        let mut effects = EFFECTS.take();
        self.session.step(now, event, &mut effects);
        if self.creates_record_for(&effects) {
            self.parked_effects = effects.drain(..).collect();
            EFFECTS.set(effects);
            return;
        }
        for effect in effects.drain(..) {
            self.perform_effect(effect);
        }
        if effects.capacity() <= EFFECTS_KEPT_MAX {
            EFFECTS.set(effects);
        }
    }

    /// An event as the session gets it, within the span of its message.
    pub(super) fn receive_in_span(&mut self, event: Event) -> (Event, EnteredSpan) {
        let within = self.spans.place_of(&self.context.traces, &event);
        if let Some(pending_record) = self.life.pending_record() {
            pending_record.within = pending_record.within.or(within);
        }
        let within = enter_span(within);
        (self.spans.receive(&self.context.traces, self.session.exchanges(), event), within)
    }

    /// Creates the record if these effects need it. Returns whether they wait until it is created.
    pub(super) fn creates_record_for(&mut self, effects: &[Effect]) -> bool {
        let is_unrecorded = matches!(self.life, Life::Unrecorded(..));
        if is_unrecorded && effects.iter().any(Effect::needs_record) {
            self.create_record();
        }
        is_unrecorded && self.life.is_being_recorded()
    }

    /// Passes an event to a session that leaves its owner: only final answers are still sent.
    pub(super) fn step_for_answers(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.session.step(clock::now(), event, &mut effects);
        for effect in effects {
            if let Effect::Answer { sink, answer } = effect
                && let Some(sink) = self.sinks.take(sink)
            {
                sink.answer(answer);
            }
        }
    }

    pub(super) fn perform_effect(&mut self, effect: Effect) {
        // A session that leaves performs only effects that answer a request.
        if !self.life.stays() && (self.life.is_over() || !matches!(effect, Effect::Answer { .. })) {
            return;
        }
        match effect {
            Effect::Answer { sink, answer } => {
                if let Some(sink) = self.sinks.take(sink) {
                    sink.answer(answer);
                }
            }
            Effect::Open { sink, welcome, at } => {
                self.write_to(sink, |sink| sink.open(welcome, at));
            }
            Effect::Write { sink, frame } => {
                let handle = Arc::clone(&self.handle);
                self.write_to(sink, |sink| sink.write(frame, &handle.share));
            }
            Effect::Finish { sink, ending } => self.sinks.finish(sink, ending),
            Effect::OpenLink => self.open_link(),
            // The messages that the old link still holds are dropped with it.
            Effect::CloseLink => {
                self.spans.close();
                self.link.end();
            }
            Effect::LeaveLink => {
                self.spans.close();
                self.link = LinkState::Down;
            }
            Effect::Send(message) => {
                let message = self.spans.send(&self.context.traces, message);
                self.following.extend(self.link.send(message));
            }
            Effect::Append { first, floor, entries } => {
                let bytes = || entries.iter().map(bytes::Bytes::len).sum();
                self.context.cluster_limits.charge_log(self.handle.tenant(), bytes);
                self.write_log(|log_writer| log_writer.push(first, floor, entries));
            }
            Effect::Save { version, change } => {
                self.write_log(|log_writer| log_writer.save(version, change));
            }
            Effect::Over { cause } => self.leave(End::Over(cause)),
            Effect::Count(fact) => metrics::count_fact(&fact),
        }
    }

    fn write_to(&mut self, id: SinkId, write: impl FnOnce(&Sink) -> Wrote) {
        let Some(sink) = self.sinks.get(id) else { return };
        if write(sink) == Wrote::Cut {
            self.sinks.take(id);
            self.following.push(Event::SinkClosed { sink: id });
        }
    }

    fn write_log(&mut self, write: impl FnOnce(&mut LogWriter)) {
        if let Some(log_writer) = self.life.log_writer_mut() {
            write(log_writer);
            self.poll_log_writer_now();
        }
    }

    /// Opens a link to the tenant's server, as the settings have it now.
    fn open_link(&mut self) {
        let (node, tenant) = (&self.context, self.handle.tenant());
        // In this order: a reload replaces the backends first, so no session saves the new definition
        // and has the former backend.
        let definition = node.care(tenant).definition;
        let current = node.backends.of(tenant);
        let both = self.backend.as_ref().zip(current.as_ref());
        let is_replaced = both.is_some_and(|(former, current)| !Arc::ptr_eq(former, current));
        // The last sessions of a removed tenant keep the backend that they have.
        self.backend = current.or_else(|| self.backend.take());
        self.following.push(Event::BackendChosen { definition, is_replaced });
        match self.new_link(definition) {
            Ok(link) => {
                link.charge_to(&self.handle.share);
                self.link = LinkState::Up(link);
            }
            Err(reason) => {
                let reason = reason.to_owned();
                // Only what a former owner's link saved can be missing at a server that exists.
                if self.backend.as_ref().is_some_and(|backend| backend.is_stateful()) {
                    self.following.push(Event::ServerStateLost);
                }
                self.following.push(Event::LinkDown { reason });
            }
        }
    }

    /// Opens a link that begins anew, or that carries on what a former owner's link saved.
    fn new_link(&self, definition: Option<Definition>) -> Result<Link, &'static str> {
        let backend = self.backend.as_ref();
        let backend = backend.ok_or("the tenant has no server; configure a backend for it")?;
        let (session, principal) = (&self.handle.session, self.handle.principal().digest());
        let Some(saved) = self.session.saved_link() else {
            return Ok(backend.open_with(session, &principal, &|| self.handle.tokens()));
        };
        if saved.definition.zip(definition).is_some_and(|(former, now)| former != now) {
            return Err("the settings of the server were changed");
        }
        let state = self.context.link_seal.open(session, &saved.state);
        let state = state.ok_or("the session with the server was sealed with another secret")?;
        let saved = SavedLink { state, positions: saved.positions };
        Ok(backend.carry_on(session, &principal, saved, &|| self.handle.tokens()))
    }

    /// Creates the record in the store, before the client receives the session's id.
    pub(super) fn create_record(&mut self) {
        let Some(pending_record) = self.life.pending_record() else { return };
        let record = pending_record.record(self.session.revision(), self.session.initialize());
        let settings = &self.context.settings;
        let creation: Creation = Box::pin(record::create_in_store(
            Arc::clone(&self.context.store),
            self.handle.session.clone(),
            record,
            settings.record_ttl(),
            Duration::from_secs(settings.store_wait_secs),
        ));
        match poll_once(creation) {
            Ok(outcome) => self.record_created(outcome),
            Err(creation) => pending_record.creation = Some(creation),
        }
    }

    /// Handles the result of creating the record.
    pub(super) fn record_created(&mut self, outcome: Result<(), Error>) {
        let within = self.life.pending_record().and_then(|pending_record| pending_record.within);
        let _within = enter_span(within);
        if let Err(error) = outcome {
            tracing::error!(session = ?self.handle.session, %error, "creating a session record failed");
            self.abandon(End::Unrecorded);
            return;
        }
        let (mut pending_record, registration) = match self.life.replace_with_over() {
            Life::Unrecorded(pending_record, registration) => (pending_record, registration),
            life => {
                self.life = life;
                return;
            }
        };
        if let Some(recorded) = pending_record.recorded.take() {
            // The send fails only if the opener no longer waits; then it has dropped the
            // connection, too.
            let _ = recorded.send(());
        }
        let settings = &self.context.settings;
        let record = pending_record.record(self.session.revision(), self.session.initialize());
        let (ttl, now) = (settings.record_ttl(), clock::now().0);
        let session = self.handle.session.clone();
        self.handle.set_handshake(self.session.revision(), &record.initialize);
        self.report_opened();
        let ownership = Ownership::new(session, record, pending_record.acquired, ttl, now);
        let log_writer = LogWriter::new(ownership, settings.lifetimes(), pending_record.random);
        self.life = Life::Recorded(Recorded { log_writer, registration });
    }

    /// Logs that the session was opened.
    fn report_opened(&self) {
        let handshake = self.handle.handshake();
        let client = handshake.and_then(|handshake| handshake.client.as_ref());
        tracing::info!(
            tenant = &**self.handle.tenant(),
            session = ?self.handle.session,
            revision = handshake.map(|handshake| handshake.revision.as_str()),
            client = client.map(|client| client.as_str()),
            "session opened"
        );
    }
}

/// Polls a future once. Returns its output, or the future if it is pending.
pub(super) fn poll_once<F: Future + Unpin>(mut future: F) -> Result<F::Output, F> {
    match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err(future),
    }
}

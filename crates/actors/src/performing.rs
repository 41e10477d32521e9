//! What a session asks for, done: connections are told, the server is sent, the store is
//! given to keep.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use backends::SendError;
use conversation::{Effect, Event, Millis, SinkId};
use ownership::machine::Ownership;
use store::{Error, State};

use crate::clock;
use crate::log_writer::LogWriter;
use crate::metrics::{self, End};
use crate::record::{self, Creation};
use crate::session_actor::SessionActor;
use crate::sink::{self, Sink};

/// Most effects that a thread keeps room for.
const EFFECTS_KEPT_MAX: usize = 64;

thread_local! {
    /// Room for the effects of one step, used by every session of the thread in turn.
    static EFFECTS: Cell<Vec<Effect>> = const { Cell::new(Vec::new()) };
}

impl SessionActor {
    pub(crate) fn step(&mut self, now: Millis, event: Event) {
        let mut effects = EFFECTS.take();
        self.session.step(now, event, &mut effects);
        if self.pending_record.is_some() && effects.iter().any(Effect::needs_record) {
            self.record();
            if self.is_being_recorded() {
                self.held = effects.drain(..).collect();
                EFFECTS.set(effects);
                return;
            }
        }
        for effect in effects.drain(..) {
            self.perform(effect);
        }
        if effects.capacity() <= EFFECTS_KEPT_MAX {
            EFFECTS.set(effects);
        }
    }

    pub(crate) fn perform(&mut self, effect: Effect) {
        // While it leaves, only DELETEs are still answered.
        let answers = matches!(effect, Effect::Answer { .. });
        if self.over || (self.leaving.is_some() && !answers) {
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
            Effect::Append { first, floor, entries } => {
                if let Some(log_writer) = &mut self.log_writer {
                    log_writer.push(first, floor, entries);
                    self.keep_at_once();
                }
            }
            Effect::Save { version, state } => {
                if let Some(log_writer) = &mut self.log_writer {
                    log_writer.save(State { version, bytes: state });
                    self.keep_at_once();
                }
            }
            Effect::Over { cause } => self.leave(End::Over(cause)),
            Effect::Tell(fact) => metrics::tell(&fact),
        }
    }

    fn write(&mut self, id: SinkId, write: impl FnOnce(&Sink) -> sink::Wrote) {
        let Some(sink) = self.sinks.iter().find(|sink| sink.id == id) else { return };
        if write(sink) == sink::Wrote::Cut {
            self.take_sink(id);
            self.following.push(Event::SinkClosed { sink: id });
        }
    }

    fn take_sink(&mut self, id: SinkId) -> Option<Sink> {
        let index = self.sinks.iter().position(|sink| sink.id == id)?;
        Some(self.sinks.swap_remove(index))
    }

    fn open_link(&mut self) {
        match self.node.backends.of(&self.handle.tenant) {
            Some(backend) => {
                self.link = Some(backend.open(&self.handle.session));
                self.link_closed = false;
            }
            None => {
                let reason = "the tenant has no server; configure a backend for it".to_owned();
                self.following.push(Event::LinkDown { reason });
            }
        }
    }

    fn send(&mut self, message: protocol::Message) {
        let Some(link) = &self.link else { return };
        match link.sender.send(message.clone()) {
            Ok(()) => {}
            Err(SendError::Full) => self.following.push(Event::Unsent { message }),
            // What the server said before it went comes first, its final response included.
            Err(SendError::Down) => self.link_closed = true,
        }
    }

    /// Creates the record in the store, before the client receives the session's id.
    pub(crate) fn record(&mut self) {
        let Some(pending_record) = &mut self.pending_record else { return };
        let record = pending_record.record(self.session.revision(), self.session.initialize());
        let settings = &self.node.settings;
        let creation: Creation = Box::pin(record::create(
            Arc::clone(&self.node.store),
            self.handle.session.clone(),
            record,
            settings.record_ttl(),
            Duration::from_secs(settings.store_wait_secs),
        ));
        match at_once(creation) {
            Ok(outcome) => self.recorded(outcome),
            Err(creation) => pending_record.creation = Some(creation),
        }
    }

    pub(crate) fn recorded(&mut self, outcome: Result<(), Error>) {
        if let Err(error) = outcome {
            tracing::error!(session = ?self.handle.session, %error, "a session could not be recorded");
            self.abandon(End::Unrecorded);
            return;
        }
        let Some(pending_record) = &mut self.pending_record else { return };
        if let Some(recorded) = pending_record.recorded.take() {
            // The send fails only where the opener no longer waits; it has then dropped the
            // connection, too.
            let _ = recorded.send(());
        }
        let settings = &self.node.settings;
        let record = pending_record.record(self.session.revision(), self.session.initialize());
        let (ttl, now) = (settings.record_ttl(), clock::now().0);
        let ownership =
            Ownership::new(self.handle.session.clone(), record, pending_record.acquired, ttl, now);
        self.log_writer =
            Some(LogWriter::new(ownership, settings.lifetimes(), pending_record.random));
        self.pending_record = None;
    }
}

/// What a future comes to, if that takes no waiting; else the future, to be polled again.
pub(crate) fn at_once<F: Future + Unpin>(mut future: F) -> Result<F::Output, F> {
    match Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err(future),
    }
}

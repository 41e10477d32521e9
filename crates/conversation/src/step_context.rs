//! The context of one step of a session: its time, what the session was set up with, and the
//! effects so far.

use bytes::Bytes;
use protocol::Message;

use crate::setup::Setup;
use crate::{Answer, Effect, Ending, EventId, Fact, Frame, Limits, Millis, Refusal, SinkId};

/// The inputs and outputs of every part for one step.
pub(crate) struct StepContext<'a> {
    pub(crate) now: Millis,
    pub(crate) setup: &'a Setup,
    pub(crate) effects: &'a mut Vec<Effect>,
}

impl<'a> StepContext<'a> {
    pub(crate) fn limits(&self) -> &'a Limits {
        &self.setup.limits
    }

    /// Does the session last as long as one connection (HTTP+SSE, stdio)?
    pub(crate) fn is_duplex(&self) -> bool {
        self.setup.duplex.is_some()
    }

    /// The moment that is `secs` seconds from now.
    pub(crate) fn in_secs(&self, secs: u64) -> Millis {
        self.now.plus(secs.saturating_mul(1_000))
    }

    /// Answers a connection with a whole answer.
    pub(crate) fn answer_sink(&mut self, sink: SinkId, answer: Answer) {
        self.effects.push(Effect::Answer { sink, answer });
    }

    /// Answers a connection with a refusal.
    pub(crate) fn refuse_sink(&mut self, sink: SinkId, refusal: Refusal) {
        self.answer_sink(sink, Answer::Refused(refusal));
    }

    /// Opens a connection's SSE stream without an event id.
    pub(crate) fn open_sink_without_id(&mut self, sink: SinkId) {
        self.effects.push(Effect::Open { sink, welcome: false, at: None });
    }

    /// Writes one frame to an open connection.
    pub(crate) fn write_frame(&mut self, sink: SinkId, frame: Frame) {
        self.effects.push(Effect::Write { sink, frame });
    }

    /// Writes a message to an open connection.
    pub(crate) fn write_message(&mut self, sink: SinkId, id: Option<EventId>, data: Bytes) {
        self.write_frame(sink, Frame::Message { id, data });
    }

    /// Writes a message to the one connection of a duplex session.
    pub(crate) fn write_duplex(&mut self, data: Bytes) {
        if let Some(sink) = self.setup.duplex {
            self.write_message(sink, None, data);
        }
    }

    /// Ends an open connection.
    pub(crate) fn finish_sink(&mut self, sink: SinkId, ending: Ending) {
        self.effects.push(Effect::Finish { sink, ending });
    }

    /// Sends a message to the server.
    pub(crate) fn send_to_server(&mut self, message: impl Into<Message>) {
        self.effects.push(Effect::Send(message.into()));
    }

    /// Reports a fact for the metrics.
    pub(crate) fn count_fact(&mut self, fact: Fact) {
        self.effects.push(Effect::Count(fact));
    }
}

/// Runs one step of a part, and returns its effects; for the tests of the parts.
#[cfg(test)]
pub(crate) fn step_of_part(
    limits: Limits,
    now: Millis,
    step: impl FnOnce(&mut StepContext<'_>),
) -> Vec<Effect> {
    let start_secs = u32::try_from(limits.start_secs).unwrap_or(u32::MAX);
    let (limits, rerun) = (limits.into(), crate::Rerun::Annotated);
    let setup = Setup { limits, rerun, start_secs, idle_stop_secs: None, duplex: None };
    let mut effects = Vec::new();
    step(&mut StepContext { now, setup: &setup, effects: &mut effects });
    effects
}

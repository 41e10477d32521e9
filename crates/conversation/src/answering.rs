//! What becomes of a POST with requests: one JSON answer, an array, or a stream; and the
//! final response to each of its requests.

use bytes::Bytes;
use protocol::RequestId;

use crate::exchange::{Call, CallId, FinalResponse, Form};
use crate::entry::{EntryKind, Mark, Opening};
use crate::session::{Session, StepContext};
use crate::stream::duplex_message;
use crate::{Answer, Effect, Ending, Frame, Millis, SinkId};

impl Session {
    /// Where messages of a call go besides its answer; makes its answer a stream if it
    /// is none yet. `None` when its client went away before there was anything to come back to.
    pub(crate) fn upgraded(
        &mut self,
        context: &mut StepContext<'_>,
        id: CallId,
    ) -> Option<Upgraded> {
        let call = self.calls.iter_mut().find(|call| call.id == id)?;
        let sink = call.sink;
        match &mut call.form {
            Form::Stream(stream) => Some(Upgraded::Stream(*stream)),
            Form::Unlogged => sink.map(Upgraded::Sink),
            Form::Duplex => None,
            Form::Held { answers, .. } => {
                let sink = sink?;
                let answers = std::mem::take(answers);
                Some(Upgraded::Stream(self.upgrade(context, id, sink, answers)))
            }
        }
    }

    /// Makes a POST's answer a stream.
    fn upgrade(
        &mut self,
        context: &mut StepContext<'_>,
        id: CallId,
        sink: SinkId,
        answers: Vec<FinalResponse>,
    ) -> u64 {
        let open = self.exchanges.iter().filter(|exchange| exchange.call == id);
        let said = answers.iter().filter_map(|response| response.id.clone());
        let said = said.map(|id| Opening { id, rerun: None });
        let openings = said.chain(open.map(|exchange| self.opening(exchange))).collect();
        let stream = self.open_stream(context, Some(sink), openings, Some(id));
        // From now on the log has it.
        self.exchanges.iter_mut().filter(|e| e.call == id).for_each(|e| e.raw = None);
        if let Some(call) = self.calls.iter_mut().find(|call| call.id == id) {
            call.form = Form::Stream(stream);
        }
        for response in answers {
            self.write_final_response(context, stream, response);
        }
        stream
    }

    /// A POST was silent for long: its answer becomes a stream.
    pub(crate) fn upgrade_silent(&mut self, context: &mut StepContext<'_>, id: CallId) {
        let starting = !self.is_initialized();
        let Some(call) = self.calls.iter_mut().find(|call| call.id == id) else { return };
        let (Some(sink), Form::Held { upgrade_at, answers }) = (call.sink, &mut call.form) else {
            return;
        };
        if starting {
            // There is nothing to resume before there is a session.
            call.form = Form::Unlogged;
            context.effects.push(Effect::Open { sink, welcome: true, at: None });
            context.effects.push(Effect::Write { sink, frame: Frame::KeepAlive });
            return;
        }
        *upgrade_at = Millis(u64::MAX);
        let answers = std::mem::take(answers);
        self.upgrade(context, id, sink, answers);
    }

    /// Gives the final response to one request of a call.
    pub(crate) fn final_response(
        &mut self,
        context: &mut StepContext<'_>,
        id: CallId,
        request: Option<&RequestId>,
        data: Bytes,
    ) {
        let Some(index) = self.calls.iter().position(|call| call.id == id) else { return };
        let call = &mut self.calls[index];
        call.open -= 1;
        let (done, sink, batch, gated) = (call.open == 0, call.sink, call.batch, call.gated);
        let forwarded = call.forwarded;
        // Where the answer may be lost on its way, the request may come again to another owner,
        // which must know of a cancellation that comes meanwhile.
        let arrives = sink.is_some() && !forwarded;
        match &mut call.form {
            Form::Held { .. } if done && !batch => {
                self.calls.swap_remove(index);
                // A connection of this node's own cannot lose its answer.
                match request {
                    Some(request) if arrives => self.cancelled.note_answered(request),
                    Some(request) => {
                        self.keep_result(context, request, &data, (sink.is_some(), gated));
                    }
                    None => {}
                }
                let gated = gated && !mutant!("answer_a_change_at_once");
                self.answer(context, sink, Answer::Json(data), gated);
            }
            Form::Held { answers, .. } => {
                if let Some(request) = request.filter(|_| arrives) {
                    self.cancelled.note_answered(request);
                }
                answers.push(FinalResponse { id: request.cloned(), data });
                if done {
                    let answers = array(std::mem::take(answers));
                    self.calls.swap_remove(index);
                    self.answer(context, sink, answers, gated);
                }
            }
            Form::Stream(stream) => {
                let stream = *stream;
                self.write_final_response(
                    context,
                    stream,
                    FinalResponse { id: request.cloned(), data },
                );
                if gated {
                    self.hold_back();
                }
                if done {
                    self.calls.swap_remove(index);
                    if mutant!("final_response_leaves_the_stream_open") {
                        return;
                    }
                    self.close_stream(context, stream);
                }
            }
            Form::Unlogged => {
                self.calls.swap_remove(index);
                if let Some(sink) = sink {
                    let frame = Frame::Message { id: None, data };
                    context.effects.push(Effect::Write { sink, frame });
                    context.effects.push(Effect::Finish { sink, ending: Ending::Proper });
                }
            }
            Form::Duplex => {
                if done {
                    self.calls.swap_remove(index);
                }
                context.effects.extend(self.duplex.map(|pipe| duplex_message(pipe, data)));
            }
        }
    }

    /// Ends one request of a call without a final response: its client cancelled it (CAN-01).
    pub(crate) fn no_final_response(
        &mut self,
        context: &mut StepContext<'_>,
        id: CallId,
        request: &RequestId,
    ) {
        let Some(index) = self.calls.iter().position(|call| call.id == id) else { return };
        let call = &mut self.calls[index];
        call.open -= 1;
        if call.open > 0 {
            if let Form::Stream(number) = call.form {
                let what = EntryKind::Cancelled { request: request.clone() };
                let entry = self.log.push(number, what, context.now);
                let stream = self.streams.get_mut(number);
                stream.into_iter().for_each(|stream| stream.settle(request, entry));
            }
            return;
        }
        let Call { sink, batch, form, gated, .. } = self.calls.swap_remove(index);
        match form {
            Form::Held { answers, .. } if batch && !answers.is_empty() => {
                self.answer(context, sink, array(answers), gated);
            }
            Form::Held { .. } => self.answer(context, sink, Answer::Nothing, false),
            Form::Stream(stream) => self.close_stream(context, stream),
            Form::Unlogged => {
                context
                    .effects
                    .extend(sink.map(|sink| Effect::Finish { sink, ending: Ending::Proper }));
            }
            Form::Duplex => {}
        }
    }

    /// Writes a final response, and notes that its stream owes none any more.
    fn write_final_response(
        &mut self,
        context: &StepContext<'_>,
        number: u64,
        response: FinalResponse,
    ) {
        self.write_event_marked(
            context,
            number,
            response.data,
            response.id.map_or(Mark::Plain, Mark::FinalResponse),
        );
    }

    /// Answers a POST; one that changed what must survive, once that is held.
    pub(crate) fn answer(
        &mut self,
        context: &mut StepContext<'_>,
        sink: Option<SinkId>,
        answer: Answer,
        gated: bool,
    ) {
        match sink {
            Some(sink) if gated => self.answer_when_held(context, sink, answer, 0),
            Some(sink) => context.effects.push(Effect::Answer { sink, answer }),
            None => {}
        }
    }
}

/// What a call's messages are written to.
pub(crate) enum Upgraded {
    Stream(u64),
    Sink(SinkId),
}

fn array(words: Vec<FinalResponse>) -> Answer {
    Answer::Array(words.into_iter().map(|response| response.data).collect())
}

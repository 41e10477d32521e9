//! Running a request again, or going on with it, after the node that worked on it was lost.
//!
//! Nobody knows whether a lost request was done. One that changes nothing when it is done
//! twice is simply done again; any other ends with an error that says so.

use protocol::{ErrorCode, Method, Request, RequestId, Response, payload};

use crate::exchange::Form;
use crate::session::{Rerun, Session, Turn};
use crate::state::is_harmless;
use crate::stream::Stream;
use crate::{Answer, Effect, EventId, SinkId};

/// Most tools that are remembered as harmless; calls of others are not run again.
const HARMLESS_MAX: usize = 1_000;

impl Session {
    /// May a request be run although a former owner may have run it?
    pub(crate) fn may_run_again(&self, request: &Request) -> bool {
        if self.duplex.is_some() {
            return false;
        }
        if request.method != Method::ToolsCall {
            return is_harmless(&request.method);
        }
        match self.rerun {
            Rerun::Always => true,
            Rerun::Never => false,
            Rerun::Annotated if self.harmless.is_empty() => false,
            Rerun::Annotated => {
                let tool = request.params().and_then(|params| payload::name_of(&params));
                tool.is_some_and(|tool| self.harmless.contains(&*tool))
            }
        }
    }

    /// Notes which tools of a list may be called twice.
    pub(crate) fn learn_harmless(&mut self, response: &Response) {
        if self.rerun != Rerun::Annotated || self.duplex.is_some() {
            return;
        }
        let Ok(result) = response.outcome() else { return };
        for tool in protocol::header_params::tools(&result).tools {
            if !(tool.is_read_only || tool.is_idempotent) {
                self.harmless.remove(&*tool.name);
            } else if self.harmless.len() < HARMLESS_MAX {
                self.harmless.insert(tool.name.into());
            }
        }
    }

    /// A request that a former owner, or this one, may have taken already: it is gone on with
    /// where that is known. Returned where it is to be run as if it were new.
    pub(crate) fn go_on_with(
        &mut self,
        turn: &mut Turn<'_>,
        sink: SinkId,
        request: Request,
    ) -> Option<Request> {
        if let Some(stream) = self.stream_of(&request.id) {
            self.attach_to_begin(turn, sink, stream);
            return None;
        }
        if let Some(exchange) = self.exchanges.iter().find(|exchange| exchange.id == request.id) {
            let call = exchange.call;
            if let Some(call) = self.calls.iter_mut().find(|other| other.id == call)
                && matches!(call.form, Form::Held { .. })
            {
                call.sink = Some(sink);
                return None;
            }
        }
        if self.may_run_again(&request) {
            return Some(request);
        }
        let error = lost(request.id);
        let answer = Answer::Json(error.raw().clone());
        turn.effects.push(Effect::Answer { sink, answer });
        None
    }

    /// The newest stream that answers a request of this id.
    fn stream_of(&self, id: &RequestId) -> Option<u64> {
        let answers = |stream: &Stream| stream.requests.iter().any(|owed| owed.id == *id);
        self.streams.iter().rev().find(|(_, stream)| answers(stream)).map(|(number, _)| *number)
    }

    /// Tells a stream from its beginning.
    fn attach_to_begin(&mut self, turn: &mut Turn<'_>, sink: SinkId, number: u64) {
        let opened = self.log.get(number).filter(|logged| logged.stream == number);
        let Some(emitter) = opened.map(|logged| logged.emitter) else {
            // What it began with is gone; so is what it said, for all that is known.
            let requests =
                self.streams.get(&number).map(|s| s.requests.clone()).unwrap_or_default();
            turn.effects.push(Effect::Open { sink, welcome: false, at: None });
            self.write_trimmed(turn, sink, &requests, 0);
            turn.effects.push(Effect::Finish { sink, ending: crate::Ending::Proper });
            return;
        };
        if number > self.log.acknowledged() {
            // Its head is written when the log holds it.
            self.displace(turn, number);
            self.attach(turn, sink, number, number - 1);
            return;
        }
        self.resume_from(turn, sink, EventId { stream: number, emitter, number });
    }
}

/// The last word on a request that a lost node may or may not have done.
pub(crate) fn lost(id: RequestId) -> Response {
    let message = "the node that worked on this was lost; whether it was done is not known";
    Response::error(Some(id), ErrorCode::Refused.number(), message, None)
}

//! Requests that may have been run already: which of them may be run a second time, and
//! what becomes of each.
//!
//! A request that only reads may. A call of a tool may where the tool's author says that a
//! second call changes nothing, or where the backend is configured so. What the authors
//! say is learned from the lists that pass by; only where that does not tell, the server is asked.

use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use protocol::header_params::ToolsPage;
use protocol::{Message, Method, Request, RequestId, Response, payload};
use thin_vec::ThinVec;

use crate::exchange::{Call, CallId, Exchange, Form};
use crate::entry::{EntryKind, Mark, Opening, Rerunnable};
use crate::session::{Rerun, Session, StepContext};
use crate::stream::Owed;
use crate::{Answer, Effect, Ending, SinkId};

/// Most tools remembered; calls of further ones are not run again.
const TOOLS_MAX: usize = 1_000;

/// The error text for a request that no node can answer any more.
const LOST: &str = "the node that worked on this was lost; whether it was done is not known";

/// What a request gets that was ended here before its post came again.
const TIMED_OUT: &str = "the server took too long; the request was cancelled";

/// What is known of the tools that may be called twice.
#[derive(Default)]
pub(crate) struct Tools {
    /// Hashes of their names, sorted: names would cost every session kilobytes.
    twice: ThinVec<u64>,
    /// Are these all?
    complete: bool,
}

/// May a request be run a second time?
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Yes,
    No,
    /// The server has not annotated it.
    Unknown,
}

impl Tools {
    /// Learns from one page of the list.
    pub(crate) fn learn(&mut self, page: &ToolsPage) {
        for tool in &page.tools {
            let (hash, harmless) = (hash(&tool.name), tool.is_read_only || tool.is_idempotent);
            match self.twice.binary_search(&hash) {
                Err(at) if harmless && self.twice.len() < TOOLS_MAX => self.twice.insert(at, hash),
                Ok(at) if !harmless => {
                    self.twice.remove(at);
                }
                Ok(_) | Err(_) => {}
            }
        }
        // Who reads a list reads it from its beginning. If not, a call too few is run again.
        self.complete |= page.next_cursor.is_none();
    }

    /// The list has changed.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    /// May a call of a tool be run a second time?
    fn verdict(&self, call: &Request) -> Verdict {
        let of_others = if self.complete { Verdict::No } else { Verdict::Unknown };
        // Then no name tells more, and it need not be read.
        if self.twice.is_empty() {
            return of_others;
        }
        let name = call.params().and_then(|params| payload::name_of(&params));
        name.map_or(Verdict::No, |name| match self.twice.binary_search(&hash(&name)) {
            Ok(_) => Verdict::Yes,
            Err(_) => of_others,
        })
    }
}

fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

impl Session {
    fn verdict(&self, request: &Request) -> Verdict {
        match (&request.method, self.rerun) {
            _ if mutant!("run_everything_again") => Verdict::Yes,
            _ if mutant!("run_nothing_again") => Verdict::No,
            (method, _) if method.only_reads() => Verdict::Yes,
            (Method::ToolsCall, Rerun::Always) => Verdict::Yes,
            (Method::ToolsCall, Rerun::Annotated) => self.tools.verdict(request),
            _ => Verdict::No,
        }
    }

    /// The request itself, where it may come to be written into the log.
    pub(crate) fn keep(&self, request: &Request) -> Option<Bytes> {
        let short = request.raw().len() <= (self.limits.log_bytes_max / 256).max(512);
        let wanted = self.duplex.is_none() && short && self.verdict(request) != Verdict::No;
        wanted.then(|| request.raw().clone())
    }

    /// What the log keeps of a request when its answer becomes a stream.
    pub(crate) fn opening(&self, exchange: &Exchange) -> Opening {
        let rerun = exchange.raw.clone().and_then(|raw| {
            let verdict = self.verdict(&read(&raw)?);
            (verdict != Verdict::No).then_some(Rerunnable { raw, sure: verdict == Verdict::Yes })
        });
        Opening { id: exchange.id.clone(), rerun }
    }

    /// A page of tools passed by.
    pub(crate) fn learn_of_tools(&mut self, page: &ToolsPage) {
        if self.rerun == Rerun::Annotated && self.duplex.is_none() {
            self.tools.learn(page);
        }
    }

    /// Takes a request that may have been run already.
    pub(crate) fn take_again(
        &mut self,
        context: &mut StepContext<'_>,
        call: CallId,
        request: Request,
    ) {
        if self.is_cancelled(&request.id) {
            // Its client has cancelled it since.
            self.no_final_response(context, call, &request.id);
            return;
        }
        if self.unanswered.iter().any(|ended| ended.id == request.id) {
            let id = Some(request.id);
            let error = Response::error(id, crate::REFUSED, TIMED_OUT, None);
            self.final_response(context, call, error.id.as_ref(), error.raw().clone());
            return;
        }
        // What has asked the client something would ask it again.
        let asked = self.askers.contains(&request.id);
        let verdict = if asked { Verdict::No } else { self.verdict(&request) };
        self.take_judged(context, call, request, verdict);
    }

    fn take_judged(
        &mut self,
        context: &mut StepContext<'_>,
        call: CallId,
        request: Request,
        verdict: Verdict,
    ) {
        if verdict == Verdict::No {
            self.say_lost(context, call, &request.id);
        } else if verdict == Verdict::Yes {
            self.take_request(context, call, request);
        } else if let Some(request) = self.begin_exchange(context, call, request) {
            // The server is asked first; the request waits like one that it was not sent.
            self.link.undecided.push(request);
            self.read_tools(context);
        }
    }

    fn say_lost(&mut self, context: &mut StepContext<'_>, call: CallId, id: &RequestId) {
        let error = lost(id);
        self.final_response(context, call, Some(id), error.raw().clone());
    }

    /// The list of tools was read, as far as it could be: what waited for it goes on.
    pub(crate) fn decide(&mut self, context: &mut StepContext<'_>) {
        for request in std::mem::take(&mut self.link.undecided) {
            if self.verdict(&request) == Verdict::Yes {
                self.send(context, request.into());
                continue;
            }
            let named = |exchange: &Exchange| exchange.id == request.id;
            if let Some(index) = self.exchanges.iter().position(named) {
                let exchange = self.exchanges.swap_remove(index);
                self.settle_taken(context, exchange, lost(&request.id).raw().clone(), false);
            }
        }
    }

    /// Settles a stream of the log whose owner is gone: every request without a final
    /// response runs again, or gets one.
    pub(crate) fn settle_stream(&mut self, context: &mut StepContext<'_>, number: u64) {
        let Some(stream) = self.streams.get(number) else { return };
        let (asked, batch) = (stream.asked, stream.requests.len() > 1);
        let owed: Vec<Owed> =
            stream.requests.iter().filter(|o| o.final_response == 0).cloned().collect();
        if owed.is_empty() {
            self.close_stream(context, number);
            return;
        }
        let form = Form::Stream(number);
        let call = self.add_call(None, owed.len(), batch, form);
        if let Some(stream) = self.streams.get_mut(number) {
            stream.call = Some(call);
        }
        for Owed { id, rerun, progress, .. } in owed {
            // What has asked the client something would ask it again.
            let asked = asked || self.askers.contains(&id);
            let again = rerun.filter(|_| !asked || mutant!("ask_again"));
            let again = again.and_then(|rerun| Some((read(&rerun.raw)?, rerun.sure)));
            let Some((request, sure)) = again else {
                if !mutant!("say_nothing_of_what_is_lost") {
                    self.say_lost(context, call, &id);
                }
                continue;
            };
            let progress = progress.into_iter().chain(self.last_progress(number, &request));
            let verdict = match self.verdict(&request) {
                // The last owner had the list of tools that this one would have to request.
                Verdict::Unknown if sure => Verdict::Yes,
                verdict => verdict,
            };
            self.take_judged(context, call, request, verdict);
            if !mutant!("progress_begins_anew") {
                self.go_on_from(&id, progress.reduce(f64::max));
            }
        }
    }

    /// The progress of a request that runs again must rise above what was sent already.
    fn go_on_from(&mut self, id: &RequestId, progress: Option<f64>) {
        let exchange = self.exchanges.iter_mut().find(|exchange| exchange.id == *id);
        if let Some((pace, progress)) = exchange.and_then(|e| e.progress.as_mut()).zip(progress) {
            pace.go_on_from(progress);
        }
    }

    /// The highest progress of a request that its stream's log holds.
    fn last_progress(&self, stream: u64, request: &Request) -> Option<f64> {
        let token = request.progress_token()?;
        let told = self.log.replay(stream, 0).filter_map(|(_, what)| {
            let EntryKind::Event { data, mark: Mark::Plain } = what else { return None };
            let Ok(Message::Notification(notification)) = Message::parse(data.clone()) else {
                return None;
            };
            let about = payload::progress_of(&notification.params()?)?;
            (notification.method == Method::Progress && about.0 == token).then_some(about.1)
        });
        told.reduce(f64::max)
    }

    /// Attaches a POST that came again to what answers its request already. False where
    /// nothing does.
    pub(crate) fn rejoin(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        id: &RequestId,
    ) -> bool {
        if self.give_result(context, sink, id) {
            return true;
        }
        let answers = |requests: &[Owed]| requests.iter().any(|owed| owed.id == *id);
        let stream = self.streams.iter().rev().find(|(_, s)| answers(&s.requests));
        let stream = stream.map(|(number, _)| number);
        if let Some(stream) = stream {
            self.attach_from_the_beginning(context, sink, stream);
            return true;
        }
        let mut tombstones = self.finished.iter().rev();
        if let Some(tombstone) = tombstones.find(|tombstone| answers(&tombstone.requests)) {
            let requests = tombstone.requests.clone();
            context.effects.push(Effect::Open { sink, welcome: false, at: None });
            self.write_trimmed(context, sink, &requests, 0);
            self.finish(context, sink, Ending::Proper);
            return true;
        }
        self.take_over_call(context, sink, id) || self.take_over_parked(context, sink, id)
    }

    /// Makes a POST that came again the one that waits for a call in flight.
    fn take_over_call(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        id: &RequestId,
    ) -> bool {
        let mut exchanges = self.exchanges.iter();
        let exchange = exchanges.find(|e| e.id == *id && e.method != Method::Initialize);
        let running = exchange.map(|exchange| exchange.call);
        let holds = |call: &&mut Call| match &call.form {
            Form::Held { answers, .. } => {
                Some(call.id) == running
                    || answers.iter().any(|response| response.id.as_ref() == Some(id))
            }
            _ => false,
        };
        let Some(call) = self.calls.iter_mut().find(holds) else { return false };
        let number = call.id;
        if let Some(sink) = call.sink.replace(sink) {
            context.effects.push(Effect::Answer { sink, answer: Answer::Nothing });
        }
        self.ask_what_waits_for(context, number);
        true
    }
}

fn read(raw: &Bytes) -> Option<Request> {
    match Message::parse(raw.clone()) {
        Ok(Message::Request(request)) => Some(request),
        _ => None,
    }
}

fn lost(id: &RequestId) -> Response {
    Response::error(Some(id.clone()), crate::REFUSED, LOST, None)
}

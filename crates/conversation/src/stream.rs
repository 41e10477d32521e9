//! The session's SSE streams: what is sent on each, over which connection, and in what order.
//!
//! A message is written to a client only from here, and only when the log holds it.

use bytes::Bytes;
use protocol::RequestId;

use crate::answering::Upgraded;
use crate::exchange::CallId;
use crate::entry::{EntryKind, Mark, Opening, Rerunnable, ServerRequestId};
use crate::session::{Session, StepContext};
use crate::{Effect, Ending, Fact, Frame, Millis, SinkId};

/// How long the head of a response waits until the log holds its stream, in milliseconds;
/// then it is written without an event id, so that the client is not left without a byte.
const HEAD_WAIT_MS: u64 = 4_000;

/// A stream of the log.
pub(crate) struct Stream {
    /// The requests it answers; none for a standalone stream.
    pub(crate) requests: Vec<Owed>,
    /// The POST it belongs to, while that has open requests.
    pub(crate) call: Option<CallId>,
    /// The number of its newest entry that can be sent.
    pub(crate) last: u64,
    /// The number of its newest entry that was trimmed; 0 for none.
    pub(crate) trimmed: u64,
    pub(crate) closed: bool,
    /// Has any of its requests asked the client something?
    pub(crate) asked: bool,
}

impl Stream {
    pub(crate) fn new(number: u64, requests: Vec<Owed>, call: Option<CallId>) -> Self {
        Self { requests, call, last: number, trimmed: 0, closed: false, asked: false }
    }

    /// Notes that it owes a request nothing more.
    pub(crate) fn settle(&mut self, id: &RequestId, number: u64) {
        if let Some(owed) = self.requests.iter_mut().find(|owed| owed.id == *id) {
            *owed = Owed::new(id.clone(), number);
        }
    }

    pub(crate) fn is_standalone(&self) -> bool {
        self.requests.is_empty()
    }
}

/// What is remembered of a stream when nothing of it can be replayed any more.
pub(crate) struct Tombstone {
    pub(crate) stream: u64,
    pub(crate) last: u64,
    pub(crate) requests: Vec<Owed>,
    /// Since when: it is forgotten after `replay_secs`.
    pub(crate) ended_at: Millis,
}

/// A request that a stream answers.
#[derive(Clone)]
pub(crate) struct Owed {
    pub(crate) id: RequestId,
    /// The number of its final response, or of its cancellation; 0 before there is one.
    pub(crate) final_response: u64,
    /// The request itself, while another owner might have to run it again.
    pub(crate) rerun: Option<Rerunnable>,
    /// How far its progress had come at a former owner, where the log does not say any more.
    pub(crate) progress: Option<f64>,
}

impl Owed {
    pub(crate) fn new(id: RequestId, final_response: u64) -> Self {
        Self { id, final_response, rerun: None, progress: None }
    }
}

/// A connection that listens to a stream of the log.
pub(crate) struct Attachment {
    pub(crate) sink: SinkId,
    pub(crate) stream: u64,
    /// The number of the newest entry written to it.
    pub(crate) sent: u64,
    /// Was the response's head written?
    pub(crate) open: bool,
    /// Does the client know an event id of the stream, to resume it with?
    pub(crate) resumable: bool,
    /// When the head is written even if the log does not hold the stream yet.
    pub(crate) head_by: Millis,
    pub(crate) ping_at: Option<Millis>,
    /// When a message was last written to it.
    pub(crate) told_at: Millis,
    pub(crate) poll_at: Option<Millis>,
}

/// Where a message of the server's goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Route {
    /// With the answer to a POST.
    Call(CallId),
    /// On a standalone stream.
    Standalone,
}

/// A message that waits for a standalone stream.
pub(crate) struct Waiting {
    pub(crate) data: Bytes,
    /// The server request that it is.
    pub(crate) server_request: Option<ServerRequestId>,
    /// May it be sent before the client sent `initialized` (RPC-11)?
    pub(crate) early: bool,
}

impl Session {
    /// Opens a stream in the log. Its head is written once the log holds it.
    pub(crate) fn open_stream(
        &mut self,
        context: &StepContext<'_>,
        sink: Option<SinkId>,
        openings: Vec<Opening>,
        call: Option<CallId>,
    ) -> u64 {
        let number = self.log.next();
        let owed = |opening: &Opening| Owed {
            rerun: opening.rerun.clone(),
            ..Owed::new(opening.id.clone(), 0)
        };
        let requests = openings.iter().map(owed).collect();
        self.log.push(number, EntryKind::Opened { requests: openings }, context.now);
        self.streams.insert(number, Stream::new(number, requests, call));
        if let Some(sink) = sink {
            self.attach(context, sink, number, number - 1);
        }
        number
    }

    pub(crate) fn attach(
        &mut self,
        context: &StepContext<'_>,
        sink: SinkId,
        stream: u64,
        sent: u64,
    ) {
        let standalone = self.streams.get(stream).is_some_and(Stream::is_standalone);
        let pings = standalone && self.limits.ping_secs > 0;
        let polls = self.limits.stream_secs > 0 && self.revision().has_priming();
        if self.attachments.is_empty() {
            // Most clients listen once, and for long.
            self.attachments.reserve_exact(1);
        }
        self.attachments.push(Attachment {
            sink,
            stream,
            sent,
            open: false,
            resumable: false,
            head_by: context.now.plus(HEAD_WAIT_MS),
            ping_at: pings.then(|| context.now.plus(self.limits.ping_secs * 1_000)),
            told_at: context.now,
            poll_at: polls.then(|| context.now.plus(self.limits.stream_secs * 1_000)),
        });
    }

    pub(crate) fn attachment(&mut self, stream: u64) -> Option<&mut Attachment> {
        self.attachments.iter_mut().find(|attachment| attachment.stream == stream)
    }

    /// Writes a message to a stream's log; it is sent once the log holds it.
    pub(crate) fn write_event(&mut self, context: &StepContext<'_>, stream: u64, data: Bytes) {
        self.write_event_marked(context, stream, data, Mark::Plain);
    }

    /// As [`Session::write_event`], and notes what the message means.
    pub(crate) fn write_event_marked(
        &mut self,
        context: &StepContext<'_>,
        id: u64,
        data: Bytes,
        mark: Mark,
    ) {
        let event = EntryKind::Event { data, mark: mark.clone() };
        let number = self.log.push(id, event, context.now);
        if mutant!("write_an_event_twice") && mark == Mark::Plain {
            self.log.push(
                id,
                self.log.get(number).expect("just written").what.clone(),
                context.now,
            );
        }
        let Some(stream) = self.streams.get_mut(id) else { return };
        stream.last = number;
        match mark {
            Mark::Plain => {}
            Mark::FinalResponse(request) => stream.settle(&request, number),
            Mark::ServerRequest(server_request) => {
                stream.asked = true;
                self.note_logged(server_request, id, number);
            }
        }
    }

    /// Writes a question or any other message to a stream's log.
    fn write_waiting(
        &mut self,
        context: &StepContext<'_>,
        stream: u64,
        Waiting { data, server_request, .. }: Waiting,
    ) {
        // One that was withdrawn meanwhile is no question any more.
        let Some(server_request) =
            server_request.filter(|server_request| self.is_open(*server_request))
        else {
            return self.write_event_marked(context, stream, data, Mark::Plain);
        };
        self.write_event_marked(context, stream, data, Mark::ServerRequest(server_request));
        if self.streams.get(stream).is_some_and(Stream::is_standalone) {
            self.keep_asking_calls(server_request);
        }
    }

    /// Ends a stream: nothing more will come on it.
    pub(crate) fn close_stream(&mut self, context: &StepContext<'_>, number: u64) {
        if let Some(stream) = self.streams.get_mut(number).filter(|stream| !stream.closed) {
            stream.closed = true;
            stream.call = None;
            self.log.push(number, EntryKind::Closed, context.now);
        }
    }

    /// The log holds everything up to `through`: tell what waited for that.
    pub(crate) fn acknowledged(&mut self, context: &mut StepContext<'_>, through: u64) {
        let through = self.may_tell(through);
        for number in self.log.acknowledge(through) {
            let Some(logged) = self.log.get(number) else { continue };
            let (stream, what) = (logged.stream, logged.what.clone());
            self.reveal(context, stream, number, &what);
        }
    }

    /// Writes one entry that the log holds to the connection that listens to its stream.
    pub(crate) fn reveal(
        &mut self,
        context: &mut StepContext<'_>,
        number: u64,
        entry: u64,
        what: &EntryKind,
    ) {
        let id = self.log.owner_tags.id(number, entry);
        let Some(attachment) = self.attachment(number).filter(|a| a.sent < entry) else { return };
        let sink = attachment.sink;
        attachment.sent = entry;
        match what {
            EntryKind::Opened { .. } => self.open_head(context, number, entry),
            EntryKind::Event { data, .. } => {
                attachment.told_at = context.now;
                attachment.resumable = true;
                let frame = Frame::Message { id: Some(id), data: data.clone() };
                context.effects.push(Effect::Write { sink, frame });
            }
            EntryKind::Closed => self.finish(context, sink, Ending::Proper),
            _ => {}
        }
    }

    /// Writes the head of a stream's response: where to come back to, and when (SSE-04, SSE-05).
    pub(crate) fn open_head(&mut self, context: &mut StepContext<'_>, number: u64, cursor: u64) {
        let retry = self.retry();
        let primes = self.revision().has_priming();
        let cursor = if mutant!("head_names_the_next_event") { cursor + 1 } else { cursor };
        let id = self.log.owner_tags.id(number, cursor);
        let Some(attachment) = self.attachment(number) else { return };
        let (sink, open) = (attachment.sink, std::mem::replace(&mut attachment.open, true));
        attachment.resumable = true;
        if !open {
            context.effects.push(Effect::Open { sink, welcome: false, at: Some(id) });
        }
        if primes {
            context.effects.push(Effect::Write { sink, frame: Frame::Cursor { id, retry } });
        } else if !open {
            context.effects.push(Effect::Write { sink, frame: Frame::KeepAlive });
        }
    }

    /// Ends a connection that listens to a stream; the stream itself goes on.
    pub(crate) fn finish(&mut self, context: &mut StepContext<'_>, sink: SinkId, ending: Ending) {
        self.attachments.retain(|attachment| attachment.sink != sink);
        context.effects.push(Effect::Finish { sink, ending });
    }

    /// Gives a message its way to the client. Returns false where there is none.
    pub(crate) fn deliver(
        &mut self,
        context: &mut StepContext<'_>,
        route: Route,
        data: Bytes,
        early: bool,
    ) {
        if data.len() > self.limits.message_bytes_max {
            context.effects.push(Effect::Tell(Fact::Dropped));
            return;
        }
        self.deliver_waiting(context, route, Waiting { data, server_request: None, early });
    }

    pub(crate) fn deliver_waiting(
        &mut self,
        context: &mut StepContext<'_>,
        route: Route,
        message: Waiting,
    ) {
        let may_go = message.early || self.is_live();
        if let Some(pipe) = self.duplex {
            if may_go {
                context.effects.push(duplex_message(pipe, message.data));
            } else {
                self.wait(context, message);
            }
            return;
        }
        match route {
            Route::Call(call) => match self.upgraded(context, call) {
                Some(Upgraded::Stream(stream)) => self.write_waiting(context, stream, message),
                Some(Upgraded::Sink(sink)) => {
                    let frame = Frame::Message { id: None, data: message.data };
                    context.effects.push(Effect::Write { sink, frame });
                }
                None => self.deliver_waiting(context, Route::Standalone, message),
            },
            Route::Standalone => match self.newest_standalone() {
                Some(stream) if may_go => self.write_waiting(context, stream, message),
                _ => self.wait(context, message),
            },
        }
    }

    /// The stream for a message that belongs to no request: the newest standalone stream that has
    /// a connection (SSE-01).
    pub(crate) fn newest_standalone(&self) -> Option<u64> {
        let listened = self.attachments.iter().map(|attachment| attachment.stream);
        let standalone =
            |number: &u64| self.streams.get(*number).is_some_and(Stream::is_standalone);
        listened.filter(standalone).max()
    }

    /// Keeps a message until there is a stream for it; at the bound the oldest goes.
    fn wait(&mut self, context: &mut StepContext<'_>, message: Waiting) {
        if self.waiting.len() >= self.limits.waiting_max {
            self.waiting.remove(0);
            context.effects.push(Effect::Tell(Fact::Dropped));
        }
        self.waiting.push(message);
    }

    /// Tells what waited, as far as it may go now.
    pub(crate) fn tell_waiting(&mut self, context: &mut StepContext<'_>) {
        if self.duplex.is_none() && self.newest_standalone().is_none() {
            return;
        }
        let live = self.is_live();
        for waiting in std::mem::take(&mut self.waiting) {
            if live || waiting.early {
                self.deliver_waiting(context, Route::Standalone, waiting);
            } else {
                self.waiting.push(waiting);
            }
        }
    }

    /// A connection waits for a call again: the server requests for that call, which had no way
    /// to the client and wait for a standalone stream, go there.
    pub(crate) fn ask_what_waits_for(&mut self, context: &mut StepContext<'_>, call: CallId) {
        let waiting = std::mem::take(&mut self.waiting);
        let is_for_call = |message: &Waiting| {
            message
                .server_request
                .and_then(|server_request| self.call_of_server_request(server_request))
                == Some(call)
        };
        let (server_requests, others): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(is_for_call);
        self.waiting = others.into();
        for server_request in server_requests {
            self.deliver_waiting(context, Route::Call(call), server_request);
        }
    }
}

pub(crate) fn duplex_message(pipe: SinkId, data: Bytes) -> Effect {
    Effect::Write { sink: pipe, frame: Frame::Message { id: None, data } }
}

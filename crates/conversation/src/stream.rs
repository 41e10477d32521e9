//! The session's SSE streams: what is told on each, who listens, and in what order.
//!
//! A message is written to a client only from here, and only when the log holds it.

use bytes::Bytes;
use protocol::{ErrorCode, Notification, RequestId, Response};

use crate::answering::Upgraded;
use crate::exchange::CallId;
use crate::log::{Asked, Mark, What};
use crate::session::{Session, Turn};
use crate::{Effect, Emitter, Ending, EventId, Fact, Frame, Millis, SinkId};

/// A stream of the log.
pub(crate) struct Stream {
    /// Who opened it: nobody who emitted before that meant this stream by its number.
    pub(crate) opener: Emitter,
    /// The requests it answers; none for a standalone stream.
    pub(crate) requests: Vec<Owed>,
    /// The POST it belongs to, while that has open requests.
    pub(crate) call: Option<CallId>,
    /// The number of its newest entry that can be told.
    pub(crate) last: u64,
    /// The number of its newest entry that was trimmed; 0 for none.
    pub(crate) trimmed: u64,
    pub(crate) closed: bool,
    /// Its client was asked something on it, so its requests are not run again.
    pub(crate) asked: bool,
}

impl Stream {
    pub(crate) fn is_standalone(&self) -> bool {
        self.requests.is_empty()
    }
}

/// What is remembered of a stream when nothing of it can be replayed any more.
pub(crate) struct Tombstone {
    pub(crate) stream: u64,
    pub(crate) opener: Emitter,
    pub(crate) last: u64,
    pub(crate) requests: Vec<Owed>,
    /// When it was put up.
    pub(crate) at: Millis,
}

/// A request that a stream answers.
#[derive(Clone)]
pub(crate) struct Owed {
    pub(crate) id: RequestId,
    /// The request on one line, where running it again does no harm.
    pub(crate) again: Option<Bytes>,
    /// The number of its last word; 0 before there is one.
    pub(crate) word: u64,
}

/// Most tombstones kept; the oldest goes, and its stream's ids are unknown then.
pub(crate) const TOMBSTONES_MAX: usize = 256;

/// Most standalone streams kept that nobody listens to.
const DESERTED_MAX: usize = 8;

/// A connection that listens to a stream of the log.
pub(crate) struct Attachment {
    pub(crate) sink: SinkId,
    pub(crate) stream: u64,
    /// The number of the newest entry written to it.
    pub(crate) sent: u64,
    /// Was the response's head written?
    pub(crate) open: bool,
    pub(crate) keepalive_at: Millis,
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

/// A message that waits for a standalone stream. It is in no log: an owner that is lost
/// takes it along.
pub(crate) struct Waiting {
    pub(crate) data: Bytes,
    /// May it go before the client said `initialized` (RPC-11)?
    pub(crate) early: bool,
    pub(crate) mark: Mark,
}

impl Session {
    /// Opens a stream in the log. Its head is written once the log holds it.
    pub(crate) fn open_stream(
        &mut self,
        turn: &Turn<'_>,
        sink: Option<SinkId>,
        requests: Vec<Asked>,
        call: Option<CallId>,
    ) -> u64 {
        let number = self.log.next();
        let opened = What::Opened { requests: requests.clone() };
        self.log.push(number, self.emitter, opened, turn.now);
        let owed = |Asked { id, again }| Owed { id, again, word: 0 };
        let requests = requests.into_iter().map(owed).collect();
        let stream = Stream {
            opener: self.emitter,
            requests,
            call,
            last: number,
            trimmed: 0,
            closed: false,
            asked: false,
        };
        self.streams.insert(number, stream);
        if let Some(sink) = sink {
            self.attach(turn, sink, number, number - 1);
        }
        number
    }

    pub(crate) fn attach(&mut self, turn: &Turn<'_>, sink: SinkId, stream: u64, sent: u64) {
        let standalone = self.streams.get(&stream).is_some_and(Stream::is_standalone);
        let pings = standalone && self.limits.ping_secs > 0;
        let polls = self.limits.stream_secs > 0 && self.revision().has_priming();
        self.attachments.push(Attachment {
            sink,
            stream,
            sent,
            open: false,
            keepalive_at: turn.now.plus(self.limits.keepalive_secs * 1_000),
            ping_at: pings.then(|| turn.now.plus(self.limits.ping_secs * 1_000)),
            told_at: turn.now,
            poll_at: polls.then(|| turn.now.plus(self.limits.stream_secs * 1_000)),
        });
    }

    pub(crate) fn attachment(&mut self, stream: u64) -> Option<&mut Attachment> {
        self.attachments.iter_mut().find(|attachment| attachment.stream == stream)
    }

    /// Writes a message to a stream's log; it is told once the log holds it.
    pub(crate) fn emit(&mut self, turn: &Turn<'_>, stream: u64, data: Bytes) {
        self.emit_marked(turn, stream, data, Mark::None);
    }

    /// As `emit`, for a message that is more than a message to whoever reads the log.
    pub(crate) fn emit_marked(&mut self, turn: &Turn<'_>, number: u64, data: Bytes, mark: Mark) {
        let asks = matches!(mark, Mark::Ask(_));
        let entry = self.log.push(number, self.emitter, What::Event { data, mark }, turn.now);
        if let Some(stream) = self.streams.get_mut(&number) {
            stream.last = entry;
            stream.asked |= asks;
        }
    }

    /// Ends a stream: nothing more will come on it.
    pub(crate) fn close_stream(&mut self, turn: &Turn<'_>, number: u64) {
        if let Some(stream) = self.streams.get_mut(&number).filter(|stream| !stream.closed) {
            stream.closed = true;
            stream.call = None;
            self.log.push(number, self.emitter, What::Closed, turn.now);
        }
    }

    /// The log holds everything up to `through`: tell what waited for that.
    pub(crate) fn acknowledged(&mut self, turn: &mut Turn<'_>, through: u64) {
        for number in self.log.acknowledge(through) {
            let Some(logged) = self.log.get(number) else { continue };
            let id = EventId { stream: logged.stream, emitter: logged.emitter, number };
            let what = logged.what.clone();
            self.reveal(turn, id, &what);
        }
        self.open_gates(turn);
    }

    /// Tells one held entry to whoever listens to its stream.
    pub(crate) fn reveal(&mut self, turn: &mut Turn<'_>, id: EventId, what: &What) {
        let EventId { stream: number, number: entry, .. } = id;
        let trimmed = self.streams.get(&number).map_or(0, |stream| stream.trimmed);
        let Some(attachment) = self.attachment(number).filter(|a| a.sent < entry) else { return };
        let sink = attachment.sink;
        if attachment.sent < trimmed {
            // It never got what was trimmed, so it must not get what came after.
            if !attachment.open {
                self.open_head(turn, id);
            }
            if !self.end_trimmed(turn, number) {
                return;
            }
        }
        let Some(attachment) = self.attachment(number) else { return };
        attachment.sent = entry;
        match what {
            What::Opened { .. } => self.open_head(turn, id),
            What::Event { data, .. } => {
                attachment.told_at = turn.now;
                let frame = Frame::Message { id: Some(id), data: data.clone() };
                self.write(turn, sink, frame);
            }
            What::Closed => self.finish(turn, sink, Ending::Proper),
            What::Answered { .. } | What::Checkpoint(_) => {}
        }
    }

    /// Writes the head of a stream's response: where to come back to, and when (SSE-04, SSE-05).
    pub(crate) fn open_head(&mut self, turn: &mut Turn<'_>, id: EventId) {
        let retry = self.retry();
        let primes = self.revision().has_priming();
        let Some(attachment) = self.attachment(id.stream) else { return };
        attachment.open = true;
        let sink = attachment.sink;
        turn.effects.push(Effect::Open { sink, welcome: false, at: Some(id) });
        let frame = if primes { Frame::Cursor { id, retry } } else { Frame::KeepAlive };
        self.write(turn, sink, frame);
    }

    pub(crate) fn write(&mut self, turn: &mut Turn<'_>, sink: SinkId, frame: Frame) {
        let keepalive_at = turn.now.plus(self.limits.keepalive_secs * 1_000);
        if let Some(attachment) = self.attachments.iter_mut().find(|a| a.sink == sink) {
            attachment.keepalive_at = keepalive_at;
        }
        turn.effects.push(Effect::Write { sink, frame });
    }

    /// Ends a connection that listens to a stream; the stream itself goes on.
    pub(crate) fn finish(&mut self, turn: &mut Turn<'_>, sink: SinkId, ending: Ending) {
        self.attachments.retain(|attachment| attachment.sink != sink);
        turn.effects.push(Effect::Finish { sink, ending });
    }

    /// Gives a message its way to the client. Returns false where there is none.
    pub(crate) fn deliver(&mut self, turn: &mut Turn<'_>, route: Route, data: Bytes, early: bool) {
        self.deliver_marked(turn, route, data, early, Mark::None);
    }

    /// As `deliver`, for a message that is more than a message to whoever reads the log.
    pub(crate) fn deliver_marked(
        &mut self,
        turn: &mut Turn<'_>,
        route: Route,
        data: Bytes,
        early: bool,
        mark: Mark,
    ) {
        if let Some(pipe) = self.duplex {
            if early || self.is_live() {
                turn.effects.push(duplex_message(pipe, data));
            } else {
                self.wait(turn, data, early, mark);
            }
            return;
        }
        match route {
            Route::Call(call) => match self.upgraded(turn, call) {
                Some(Upgraded::Stream(stream)) => self.emit_on(turn, stream, data, mark),
                Some(Upgraded::Sink(sink)) => {
                    let frame = Frame::Message { id: None, data };
                    turn.effects.push(Effect::Write { sink, frame });
                }
                None => self.deliver_marked(turn, Route::Standalone, data, early, mark),
            },
            Route::Standalone => match self.newest_standalone() {
                Some(stream) if early || self.is_live() => {
                    self.emit_on(turn, stream, data, mark);
                }
                _ => self.wait(turn, data, early, mark),
            },
        }
    }

    fn emit_on(&mut self, turn: &Turn<'_>, stream: u64, data: Bytes, mark: Mark) {
        if let Mark::Ask(number) = mark {
            self.note_asked(number, stream);
        }
        self.emit_marked(turn, stream, data, mark);
    }

    /// The stream that a message to nobody in particular goes on: the newest one somebody listens to (SSE-01).
    pub(crate) fn newest_standalone(&self) -> Option<u64> {
        let listened = self.attachments.iter().map(|attachment| attachment.stream);
        let standalone = |number: &u64| self.streams.get(number).is_some_and(Stream::is_standalone);
        listened.filter(standalone).max()
    }

    /// Keeps a message until there is a stream for it; at the bound the oldest goes.
    fn wait(&mut self, turn: &mut Turn<'_>, data: Bytes, early: bool, mark: Mark) {
        if self.waiting.len() >= self.limits.waiting_max {
            self.waiting.pop_front();
            turn.effects.push(Effect::Tell(Fact::Dropped));
        }
        self.waiting.push_back(Waiting { data, early, mark });
    }

    /// Tells what waited, as far as it may go now.
    pub(crate) fn tell_waiting(&mut self, turn: &mut Turn<'_>) {
        if self.duplex.is_none() && self.newest_standalone().is_none() {
            return;
        }
        let live = self.is_live();
        for waiting in std::mem::take(&mut self.waiting) {
            if live || waiting.early {
                let Waiting { data, early, mark } = waiting;
                self.deliver_marked(turn, Route::Standalone, data, early, mark);
            } else {
                self.waiting.push_back(waiting);
            }
        }
    }

    /// Some of a stream is out of reach, and somebody still wants it. Never a silent hole:
    /// its requests end with an error; a standalone stream goes on with what is left,
    /// and its client is told to ask anew for whatever it may have missed. Returns
    /// whether the stream goes on.
    pub(crate) fn end_trimmed(&mut self, turn: &mut Turn<'_>, number: u64) -> bool {
        let Some(stream) = self.streams.get_mut(&number) else { return false };
        if stream.is_standalone() {
            stream.trimmed = 0;
            for method in self.server_lists() {
                let notification = Notification::new(method, None);
                self.emit(turn, number, notification.raw().clone());
            }
            return true;
        }
        let requests = stream.requests.clone();
        let open: Vec<_> = requests.iter().map(|owed| owed.id.clone()).collect();
        self.abandon_requests(turn, &open);
        self.close_stream(turn, number);
        if let Some(stream) = self.streams.get_mut(&number) {
            // What is left of it must not be told after its last word.
            stream.trimmed = u64::MAX;
        }
        if let Some((sink, sent)) = self.attachment(number).map(|a| (a.sink, a.sent)) {
            self.write_trimmed(turn, sink, &requests, sent);
            self.finish(turn, sink, Ending::Proper);
        }
        false
    }

    /// Writes the error that ends the requests whose last word did not come before `sent`.
    pub(crate) fn write_trimmed(
        &mut self,
        turn: &mut Turn<'_>,
        sink: SinkId,
        requests: &[Owed],
        sent: u64,
    ) {
        let unheard = requests.iter().filter(|owed| owed.word == 0 || owed.word > sent);
        for Owed { id, .. } in unheard {
            let message =
                "messages of this request were dropped before the client came back for them";
            let code = ErrorCode::InternalError.number();
            let error = Response::error(Some(id.clone()), code, message, None);
            let frame = Frame::Message { id: None, data: error.raw().clone() };
            self.write(turn, sink, frame);
        }
    }

    /// Drops what is over a bound of the log, and remembers what that ends.
    pub(crate) fn trim(&mut self, turn: &mut Turn<'_>) {
        while self.tombstone_expires_at().is_some_and(|at| at <= turn.now) {
            self.finished.pop_front();
        }
        let Some(cut) = self.cut(turn.now) else { return };
        self.drop_before(turn, cut);
        // What that made it say may have filled it again, and a checkpoint must fit, too.
        while self.log.len() > 1 && self.log.len() >= self.limits.log_events_max {
            self.drop_before(turn, self.log.first() + 1);
        }
        self.check_point(turn);
    }

    fn drop_before(&mut self, turn: &mut Turn<'_>, cut: u64) {
        while let Some(trimmed) = self.log.trim_one(cut) {
            let number = trimmed.stream;
            let Some(stream) = self.streams.get_mut(&number) else { continue };
            stream.trimmed = stream.trimmed.max(trimmed.number);
            let standalone = stream.is_standalone();
            let untold = self.attachment(number).filter(|a| a.sent < trimmed.number && !standalone);
            if let Some(attachment) = untold {
                // Somebody waits for what the log never held.
                let (sink, open) = (attachment.sink, std::mem::replace(&mut attachment.open, true));
                if !open {
                    turn.effects.push(Effect::Open { sink, welcome: false, at: None });
                }
                self.end_trimmed(turn, number);
            }
            if trimmed.closes {
                self.bury(number, turn.now);
            }
        }
    }

    /// When the oldest tombstone goes: no client comes back later than a session lasts that
    /// nobody touches.
    pub(crate) fn tombstone_expires_at(&self) -> Option<Millis> {
        let stands = self.limits.idle_secs.max(self.limits.replay_secs).saturating_mul(1_000);
        self.finished.front().map(|stone| stone.at.plus(stands))
    }

    /// Where the log is to begin from now on, if it is to be trimmed.
    fn cut(&self, now: Millis) -> Option<u64> {
        let is_checkpoint = |what: &What| matches!(what, What::Checkpoint(_));
        let says_nothing = self.log.len() > 0
            && self.finished.is_empty()
            && self.streams.is_empty()
            && self.log.is_held()
            && self.log.iter().all(|(_, logged)| is_checkpoint(&logged.what));
        // A checkpoint that nobody needs any more goes, and an idle session's log with it.
        if says_nothing { Some(self.log.next()) } else { self.log.cut(&self.limits, now) }
    }

    /// Forgets a stream but for its tombstone.
    fn bury(&mut self, number: u64, at: Millis) {
        let Some(stream) = self.streams.remove(&number) else { return };
        if self.finished.len() >= TOMBSTONES_MAX {
            self.finished.pop_front();
        }
        let Stream { opener, last, requests, .. } = stream;
        self.finished.push_back(Tombstone { stream: number, opener, last, requests, at });
    }

    /// A client left its standalone stream. It may come back; beyond the bound the oldest
    /// stream that nobody listens to is forgotten, and who comes back for it starts afresh.
    pub(crate) fn bury_deserted(&mut self, now: Millis) {
        let listened = |number: &u64| self.attachments.iter().any(|a| a.stream == *number);
        let mut deserted = self
            .streams
            .iter()
            .filter(|(number, stream)| stream.is_standalone() && !listened(number))
            .map(|(number, _)| *number);
        let oldest = deserted.next();
        if deserted.count() >= DESERTED_MAX {
            oldest.into_iter().for_each(|oldest| self.bury(oldest, now));
        }
    }
}

pub(crate) fn duplex_message(pipe: SinkId, data: Bytes) -> Effect {
    Effect::Write { sink: pipe, frame: Frame::Message { id: None, data } }
}

//! The session's SSE streams: which event is sent on each, over which connection, and in what
//! order.
//!
//! Only this module writes messages to a client, and only when the log holds them. An event that
//! waits for the store for too long is written without an event id (`unlogged`); an event that
//! the log no longer keeps is trimmed (`trimming`).

use bytes::Bytes;
use protocol::{Position, RequestId, Revision};
use thin_vec::ThinVec;

use crate::checkpoint::OpenServerRequest;
use crate::earliest::Earliest;
use crate::entry::{EntryKind, Mark, NewStreamRequest, ServerRequestId};
use crate::exchange::PostId;
use crate::log::Log;
use crate::log_replay::{self, ReplayedLog};
use crate::resumable::{Positions, StreamPosition};
use crate::sparse::Sparse;
use crate::step_context::StepContext;
use crate::stream::{Stream, Tombstone};
use crate::stream_table::StreamTable;
use crate::{Effect, Ending, Frame, Limits, OwnerTag, SinkId};

mod attachments;
mod trimming;
mod unlogged;

use attachments::Attachments;

/// The streams of a session, the log that they are written to, and the connections that
/// listen to them.
pub(crate) struct Streams {
    table: StreamTable,
    attachments: Attachments,
    log: Log,
    /// Streams that cannot be replayed any more, oldest first.
    tombstones: ThinVec<Tombstone>,
    /// How far the server's streams were read.
    positions: Sparse<Positions>,
    /// The seed of the jitter of `retry`.
    seed: u64,
}

impl Streams {
    pub(crate) fn new(owner_tag: OwnerTag, seed: u64) -> Self {
        Self {
            table: StreamTable::default(),
            attachments: Attachments::default(),
            log: Log::new(owner_tag),
            tombstones: ThinVec::new(),
            positions: Sparse::default(),
            seed: seed | 1,
        }
    }

    /// The streams of a restored log, and its open server requests.
    pub(crate) fn restored(replayed: ReplayedLog, seed: u64) -> (Self, Vec<OpenServerRequest>) {
        let ReplayedLog { log, table, tombstones, server_requests, positions } = replayed;
        let (attachments, positions) = (Attachments::default(), Sparse::from_option(positions));
        let seed = seed | 1;
        (Self { table, attachments, log, tombstones, positions, seed }, server_requests)
    }

    /// What the log must contain of the streams and of these open server requests, as text.
    pub(crate) fn outline(&self, requests: impl Iterator<Item = OpenServerRequest>) -> String {
        log_replay::outline(&self.table, &self.tombstones, requests)
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Another owner writes from now on.
    pub(crate) fn succeed_owner(&mut self, owner_tag: OwnerTag) {
        self.log.succeed(owner_tag);
    }

    /// A stream of the server was read so far. An entry of this step has the position, or a later one if
    /// none is written.
    pub(crate) fn note_read(&mut self, about: Option<RequestId>, position: Position) {
        let positions = self.positions.get_or_insert_with(Positions::default);
        positions.note_read(StreamPosition { about, position });
    }

    /// Adds positions to the entries that are still to be appended, as far as there are any.
    pub(crate) fn write_positions(&mut self) {
        let Some(positions) = self.positions.get_mut().filter(|p| p.has_unwritten()) else {
            return;
        };
        while let Some(read) = positions.take_unwritten() {
            // The response of a request that no stream answers is not waited for by another owner.
            let is_open = |about: &RequestId| {
                self.table.iter().any(|(_, stream)| !stream.closed && stream.answers(about))
            };
            if read.about.as_ref().is_some_and(|about| !is_open(about)) {
                continue;
            }
            if let Some(read) = self.log.add_position(read.clone()) {
                positions.note_read(read);
                return;
            }
            match read.about {
                None => positions.note_standalone(read.position),
                Some(_) => self.table.note_position(&read, |_| true),
            }
        }
    }

    /// How far the server's streams that belong to no request were read, as the log has it.
    pub(crate) fn standalone_positions(&self) -> impl Iterator<Item = Position> {
        self.positions.get().into_iter().flat_map(Positions::standalone)
    }

    /// The entries that were written since the last append.
    pub(crate) fn hand_out(&mut self) -> Option<Effect> {
        self.log.hand_out()
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Stream> {
        self.table.get(number)
    }

    pub(crate) fn is_standalone(&self, number: u64) -> bool {
        self.table.get(number).is_some_and(Stream::is_standalone)
    }

    /// The number of the connections that listen to a stream.
    pub(crate) fn listener_count(&self) -> usize {
        self.attachments.len()
    }

    pub(crate) fn has_listeners(&self) -> bool {
        !self.attachments.is_empty()
    }

    /// The streams of requests that are not closed, oldest first.
    pub(crate) fn open_request_streams(&self) -> Vec<u64> {
        let is_open = |stream: &Stream| !stream.closed && !stream.is_standalone();
        let open = self.table.iter().filter(|(_, stream)| is_open(stream));
        open.map(|(number, _)| number).collect()
    }

    /// The stream for a message that belongs to no request: the newest standalone stream that has
    /// a connection (SSE-01).
    pub(crate) fn newest_standalone(&self) -> Option<u64> {
        self.attachments.streams().filter(|number| self.is_standalone(*number)).max()
    }

    /// The newest stream that answers, or has answered, this request.
    pub(crate) fn stream_of(&self, id: &RequestId) -> Option<u64> {
        let stream = self.table.iter().rev().find(|(_, stream)| stream.answers(id));
        stream.map(|(number, _)| number)
    }

    /// The tombstone of the stream that has answered this request.
    pub(crate) fn tombstone_of(&self, id: &RequestId) -> Option<&Tombstone> {
        self.tombstones.iter().rev().find(|tombstone| tombstone.answers(id))
    }

    /// The tombstone of a stream.
    pub(crate) fn tombstone(&self, number: u64) -> Option<&Tombstone> {
        self.tombstones.iter().find(|tombstone| tombstone.stream == number)
    }

    /// Does a stream answer this request, or has one?
    pub(crate) fn knows_request(&self, id: &RequestId) -> bool {
        self.table.iter().any(|(_, stream)| stream.answers(id)) || self.tombstone_of(id).is_some()
    }

    /// Opens a stream in the log. Its head is written once the log holds it.
    pub(crate) fn open_stream(
        &mut self,
        context: &StepContext<'_>,
        revision: Revision,
        sink: SinkId,
        new_requests: Vec<NewStreamRequest>,
        post: Option<PostId>,
    ) -> u64 {
        let number = self.log.next();
        let stream = Stream::opened(number, &new_requests, post);
        self.log.push(number, EntryKind::Opened { requests: new_requests }, context.now);
        self.table.insert(number, stream);
        self.attach_sink(context, revision, sink, number, number - 1);
        number
    }

    /// Opens a standalone stream. At the limit the stream that was idle longest is closed
    /// (GET-09).
    pub(crate) fn open_standalone(
        &mut self,
        context: &mut StepContext<'_>,
        revision: Revision,
        sink: SinkId,
    ) -> u64 {
        let is_standalone = |number| self.table.get(number).is_some_and(Stream::is_standalone);
        let most = context.limits().standalone_max;
        if let Some((idlest, is_open)) = self.attachments.idlest_beyond(most, is_standalone) {
            self.end_connection(context, idlest, is_open);
        }
        self.open_stream(context, revision, sink, Vec::new(), None)
    }

    /// Attaches a connection to a stream, whose entries up to `sent` it has.
    pub(crate) fn attach_sink(
        &mut self,
        context: &StepContext<'_>,
        revision: Revision,
        sink: SinkId,
        stream: u64,
        sent: u64,
    ) {
        let is_standalone = self.is_standalone(stream);
        self.attachments.attach(context, revision, (sink, stream, sent), is_standalone);
    }

    /// The connection that listens to a stream, and the number of the newest entry that was
    /// written to it.
    pub(crate) fn listener(&self, stream: u64) -> Option<(SinkId, u64)> {
        self.attachments.of(stream).map(|attachment| (attachment.sink, attachment.sent))
    }

    /// The connection of a stream needs no entry up to this one any more.
    pub(crate) fn skip_to(&mut self, stream: u64, sent: u64) {
        if let Some(attachment) = self.attachments.of_mut(stream) {
            attachment.sent = sent;
        }
    }

    /// Writes a message to a stream's log, and returns its number; it is sent once the log holds
    /// it.
    pub(crate) fn write_event(
        &mut self,
        context: &StepContext<'_>,
        id: u64,
        data: Bytes,
        mark: Mark,
    ) -> u64 {
        let event = EntryKind::Event { data, mark: mark.clone() };
        let number = self.log.push(id, event, context.now);
        if mutant!("write_an_event_twice") && mark == Mark::Plain {
            let twice = self.log.get(number).expect("just written").what.clone();
            self.log.push(id, twice, context.now);
        }
        let Some(stream) = self.table.get_mut(id) else { return number };
        stream.last = number;
        match mark {
            Mark::Plain => {}
            Mark::FinalResponse(request) => stream.settle(&request, number),
            Mark::ServerRequest(_) => stream.sent_server_request = true,
        }
        number
    }

    /// Writes to a stream's log that a request on it was cancelled.
    pub(crate) fn write_cancelled(
        &mut self,
        context: &StepContext<'_>,
        number: u64,
        request: &RequestId,
    ) {
        let what = EntryKind::Cancelled { request: request.clone() };
        let entry = self.log.push(number, what, context.now);
        if let Some(stream) = self.table.get_mut(number) {
            stream.settle(request, entry);
        }
    }

    /// Writes to a stream's log that a server request on it is no longer open.
    pub(crate) fn write_answered(
        &mut self,
        context: &StepContext<'_>,
        number: u64,
        server_request: ServerRequestId,
    ) {
        self.log.push(number, EntryKind::Answered { server_request }, context.now);
    }

    /// Closes a stream: no further message is written to it.
    pub(crate) fn close_stream(&mut self, context: &StepContext<'_>, number: u64) {
        if let Some(stream) = self.table.get_mut(number).filter(|stream| !stream.closed) {
            stream.closed = true;
            stream.post = None;
            self.log.push(number, EntryKind::Closed, context.now);
        }
    }

    /// A POST without a connection answers this stream of a former owner.
    pub(crate) fn set_post(&mut self, number: u64, post: PostId) {
        if let Some(stream) = self.table.get_mut(number) {
            stream.post = Some(post);
        }
    }

    /// The log holds everything up to `through`: writes what waited for that.
    pub(crate) fn acknowledge_entries(
        &mut self,
        context: &mut StepContext<'_>,
        revision: Revision,
        through: u64,
    ) {
        for number in self.log.acknowledge(through) {
            self.send_entry(context, revision, number);
        }
    }

    /// Writes one entry that the log holds to the connection that listens to its stream.
    fn send_entry(&mut self, context: &mut StepContext<'_>, revision: Revision, number: u64) {
        let Some(logged) = self.log.get(number) else { return };
        let stream = logged.stream;
        let attachment = self.attachments.of_mut(stream).filter(|a| a.sent < number);
        let Some(attachment) = attachment else { return };
        let sink = attachment.sink;
        attachment.sent = number;
        match &logged.what {
            EntryKind::Opened { .. } => self.open_head(context, revision, stream, number),
            EntryKind::Event { data, .. } => {
                attachment.sent_at = context.now;
                attachment.resumable = true;
                let id = self.log.event_id(stream, number);
                context.write_message(sink, Some(id), data.clone());
            }
            EntryKind::Closed => self.finish_sink(context, sink, Ending::Proper),
            _ => {}
        }
    }

    /// Writes the head of a stream's response: the event to resume from, and when (SSE-04, SSE-05).
    pub(crate) fn open_head(
        &mut self,
        context: &mut StepContext<'_>,
        revision: Revision,
        number: u64,
        cursor: u64,
    ) {
        let retry = self.next_retry(context.limits());
        let cursor = if mutant!("head_names_the_next_event") { cursor + 1 } else { cursor };
        let id = self.log.event_id(number, cursor);
        let Some(attachment) = self.attachments.of_mut(number) else { return };
        let (sink, is_open) = (attachment.sink, std::mem::replace(&mut attachment.open, true));
        attachment.resumable = true;
        if !is_open {
            context.effects.push(Effect::Open { sink, welcome: false, at: Some(id) });
        }
        if revision.has_priming() {
            context.write_frame(sink, Frame::Cursor { id, retry });
        } else if !is_open {
            context.write_frame(sink, Frame::KeepAlive);
        }
    }

    /// Writes the entries of a stream after `after` that the log holds to its connection.
    pub(crate) fn replay_entries(
        &mut self,
        context: &mut StepContext<'_>,
        stream: u64,
        sink: SinkId,
        after: u64,
    ) {
        let after = if mutant!("replay_skips_an_event") { after + 1 } else { after };
        let after = if mutant!("replay_repeats_an_event") { after - 1 } else { after };
        let missed = self.log.replay(stream, after).map(|(at, what)| (at, what.clone()));
        let missed: Vec<_> = missed.collect();
        for (number, what) in missed {
            match what {
                EntryKind::Event { data, .. } => {
                    self.skip_to(stream, number);
                    let id = Some(self.log.event_id(stream, number));
                    context.write_message(sink, id, data);
                }
                // Former versions could write behind it.
                EntryKind::Closed => return self.finish_sink(context, sink, Ending::Proper),
                _ => {}
            }
        }
    }

    /// Ends a connection that listens to a stream; the stream itself stays open.
    pub(crate) fn finish_sink(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        ending: Ending,
    ) {
        self.attachments.remove(sink);
        context.finish_sink(sink, ending);
    }

    /// Ends the connection that listens to a stream, as when a newer resume replaces it.
    pub(crate) fn displace_listener(&mut self, context: &mut StepContext<'_>, stream: u64) {
        let Some(attachment) = self.attachments.of(stream) else { return };
        let (sink, is_open) = (attachment.sink, attachment.open);
        self.end_connection(context, sink, is_open);
    }

    fn end_connection(&mut self, context: &mut StepContext<'_>, sink: SinkId, is_open: bool) {
        if !is_open {
            context.open_sink_without_id(sink);
        }
        self.finish_sink(context, sink, Ending::Proper);
    }

    /// Ends all connections: the session ends here.
    pub(crate) fn finish_all_sinks(&mut self, context: &mut StepContext<'_>, ending: Ending) {
        for attachment in self.attachments.take_all() {
            if ending != Ending::Moved && mutant!("end_leaves_streams_open") {
                continue;
            }
            if !attachment.open {
                context.open_sink_without_id(attachment.sink);
            }
            context.finish_sink(attachment.sink, ending);
        }
    }

    /// A connection is closed. Returns whether it listened to a stream.
    pub(crate) fn disconnect(&mut self, sink: SinkId) -> bool {
        self.attachments.remove(sink)
    }

    /// Writes a message to a stream's connection, and not to the log: the session ends and will
    /// not replay it.
    pub(crate) fn write_past_the_log(
        &mut self,
        context: &mut StepContext<'_>,
        stream: u64,
        data: Bytes,
    ) {
        let Some(attachment) = self.attachments.of_mut(stream) else { return };
        let sink = attachment.sink;
        if !std::mem::replace(&mut attachment.open, true) {
            context.open_sink_without_id(sink);
        }
        context.write_message(sink, None, data);
    }

    /// Ends old connections so that their clients resume (SSE-05). Returns the streams whose
    /// clients are due for a ping.
    pub(crate) fn poll_and_take_pings(&mut self, context: &mut StepContext<'_>) -> Vec<u64> {
        let (polls, pings) = self.attachments.take_due(context);
        for sink in polls {
            let retry = self.next_retry(context.limits());
            context.write_frame(sink, Frame::Retry(retry));
            self.finish_sink(context, sink, Ending::Proper);
        }
        pings
    }

    pub(crate) fn note_deadlines(&self, limits: &Limits, earliest: &mut Earliest) {
        if self.has_listeners() {
            self.attachments.note_deadlines(earliest);
            let withheld = self.withheld_response(limits);
            earliest.add_deadline_if_any(withheld.map(|(_, until)| until));
        }
        earliest.add_deadline_if_any(self.trims_at(limits));
    }

    /// How long a client waits before it resumes: `retry_ms`, up to a quarter more or less, so
    /// that clients whose connections end together do not resume together.
    fn next_retry(&mut self, limits: &Limits) -> u32 {
        // xorshift64: the quality of the random numbers does not matter.
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        let quarter = u64::from(limits.retry_ms / 4);
        let around = self.seed % (quarter * 2 + 1);
        u32::try_from(u64::from(limits.retry_ms) - quarter + around).unwrap_or(u32::MAX)
    }

    /// Frees unused memory.
    pub(crate) fn shrink(&mut self) {
        self.attachments.shrink();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_context::step_of_part;
    use crate::{EventId, Millis};

    const PRIMING: Revision = Revision::NEWEST_STABLE;

    fn step(step: impl FnOnce(&mut StepContext<'_>)) -> Vec<Effect> {
        step_of_part(Limits::default(), Millis(0), step)
    }

    #[test]
    fn an_event_is_written_to_its_connection_once_the_log_holds_it() {
        let (owner_tag, sink) = (OwnerTag(7), SinkId(1));
        let mut streams = Streams::new(owner_tag, 1);
        let data = Bytes::from_static(b"{}");
        let written = step(|context| {
            let stream = streams.open_standalone(context, PRIMING, sink);
            streams.write_event(context, stream, data.clone(), Mark::Plain);
            context.effects.extend(streams.hand_out());
        });
        assert!(matches!(written[..], [Effect::Append { first: 1, floor: 1, .. }]), "{written:?}");
        let acknowledged = step(|context| streams.acknowledge_entries(context, PRIMING, 2));
        let id = EventId { stream: 1, owner_tag, number: 2 };
        let frame = Frame::Message { id: Some(id), data };
        assert_eq!(acknowledged.last(), Some(&Effect::Write { sink, frame }));
        assert!(step(|context| streams.acknowledge_entries(context, PRIMING, 2)).is_empty());
    }

    #[test]
    fn the_newest_standalone_stream_is_one_that_has_a_connection() {
        let mut streams = Streams::new(OwnerTag(7), 1);
        step(|context| {
            streams.open_standalone(context, PRIMING, SinkId(1));
            streams.open_standalone(context, PRIMING, SinkId(2));
        });
        assert_eq!(streams.newest_standalone(), Some(2));
        assert!(streams.disconnect(SinkId(2)));
        assert_eq!(streams.newest_standalone(), Some(1));
        assert!(!streams.disconnect(SinkId(2)));
    }
}

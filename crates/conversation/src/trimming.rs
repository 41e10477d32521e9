//! What happens when the log is over a bound: its oldest entries go, a checkpoint carries
//! what is still needed of them, and a client that resumes before that gets an error.
//!
//! It is trimmed in chunks, so that neither a checkpoint nor a rising floor is written for
//! every message.

use bytes::Bytes;
use protocol::{ErrorCode, Notification, Response};

use crate::carried::Carrying;
use crate::entry::{EntryKind, Mark};
use crate::session::{Session, StepContext};
use crate::stream::{Owed, Stream, Tombstone};
use crate::{Effect, Ending, Frame, Limits, Millis, SinkId};

/// Most tombstones kept; the oldest go, and their streams' ids are unknown then.
const TOMBSTONES_MAX: usize = 256;

/// So many go at once, so that the others do not move up for each.
const TOMBSTONES_DROPPED: usize = 32;

/// Most standalone streams that are kept without a connection.
const DESERTED_MAX: usize = 8;

/// Why a request's final response is an error of ours.
const LOST: &str = "messages of this request were lost with the node that sent them";

impl Session {
    /// When entries are too old to be kept. A lone checkpoint is never too old itself, but
    /// what it carries may be.
    pub(crate) fn trims_at(&self) -> Option<Millis> {
        if !self.log.is_lone_checkpoint() {
            return self.log.expires_at(&self.limits);
        }
        let tombstone = self.finished.first()?;
        self.log.is_held().then(|| tombstone.ended_at.plus(self.limits.replay_secs * 1_000))
    }

    /// Drops what is over a bound of the log, and remembers what is still needed of it.
    pub(crate) fn trim(&mut self, context: &mut StepContext<'_>) {
        let is_old = self.trims_at().is_some_and(|at| at <= context.now);
        if !is_old && !self.log.is_full(&self.limits, context.now) {
            return;
        }
        let replay = self.limits.replay_secs * 1_000;
        self.finished.retain(|tombstone| tombstone.ended_at.plus(replay) > context.now);
        let before = self.log.first();
        if is_old && self.log.is_lone_checkpoint() {
            self.log.take_oldest();
        }
        loop {
            let floor = self.log.floor(&self.limits, context.now);
            if floor <= self.log.first() {
                break;
            }
            while self.log.first() < floor {
                self.trim_one(context);
            }
        }
        if self.log.first() > before
            && !mutant!("trim_without_a_checkpoint")
            && let Some(carried) = self.carried()
        {
            self.log.push(0, EntryKind::Checkpoint(carried), context.now);
        }
    }

    fn trim_one(&mut self, context: &mut StepContext<'_>) {
        let number = self.log.first();
        // A connection that waits for the entry gets it now: the log will not have it.
        if let Some(stream) = self.log.get(number).map(|entry| entry.stream) {
            self.write_unlogged(context, stream, number);
        }
        let Some(entry) = self.log.take_oldest() else { return };
        let id = entry.stream;
        let Some(stream) = self.streams.get_mut(id) else { return };
        if entry.what.is_told() {
            stream.trimmed = number;
        }
        if entry.what == EntryKind::Closed {
            self.end_stream(context, id);
        }
    }

    /// What must be known of entries below the floor; none where that is nothing.
    fn carried(&self) -> Option<Bytes> {
        let floor = self.log.first();
        let mut carried = Carrying::new(&self.finished);
        for (number, stream) in self.streams.iter().take_while(|(number, _)| *number < floor) {
            carried.add_stream(number, stream);
            for exchange in self.exchanges.iter().filter(|e| Some(e.call) == stream.call) {
                let progress = exchange.progress.as_ref().map(|pace| pace.last());
                progress.into_iter().for_each(|p| carried.note_progress(&exchange.id, p));
            }
        }
        let server_requests = self.open_asks().filter(|(_, _, number)| *number < floor);
        server_requests.for_each(|server_request| carried.add_server_request(server_request));
        (!carried.is_empty()).then(|| carried.encode(&self.log.owner_tags))
    }

    /// Forgets a stream but for its tombstone.
    fn end_stream(&mut self, context: &mut StepContext<'_>, number: u64) {
        let Some(stream) = self.streams.remove(number) else { return };
        self.displace(context, number);
        if self.finished.len() >= TOMBSTONES_MAX {
            self.finished.drain(..TOMBSTONES_DROPPED);
        }
        let Stream { last, mut requests, .. } = stream;
        requests.iter_mut().for_each(|owed| (owed.rerun, owed.progress) = (None, None));
        let ended_at = context.now;
        self.finished.push(Tombstone { stream: number, last, requests, ended_at });
    }

    /// A client left its standalone stream, and may resume it. Beyond the bound the oldest
    /// stream without a connection is closed; a client that resumes that one gets a new stream.
    pub(crate) fn close_deserted(&mut self, context: &StepContext<'_>) {
        self.close_deserted_beyond(context, DESERTED_MAX);
    }

    /// As [`Session::close_deserted`], where the clients that listened have still to come.
    pub(crate) fn close_deserted_for_long(&mut self, context: &StepContext<'_>) {
        self.close_deserted_beyond(context, DESERTED_MAX + self.limits.standalone_max);
    }

    fn close_deserted_beyond(&mut self, context: &StepContext<'_>, most: usize) {
        let listened = |number: u64| self.attachments.iter().any(|a| a.stream == number);
        let is_deserted = |(number, stream): &(u64, &Stream)| {
            stream.is_standalone() && !stream.closed && !listened(*number)
        };
        let deserted = self.streams.iter().filter(is_deserted).map(|(number, _)| number);
        let deserted: Vec<u64> = deserted.collect();
        let beyond = deserted.len().saturating_sub(most);
        deserted.into_iter().take(beyond).for_each(|oldest| self.close_stream(context, oldest));
    }

    /// Some of a stream is out of reach, and its client still wants it. Never a silent hole:
    /// its requests end with an error; a standalone stream goes on with what is left,
    /// and its client is notified to list anew what it may have missed. Returns
    /// whether the stream goes on.
    pub(crate) fn end_trimmed(&mut self, context: &mut StepContext<'_>, number: u64) -> bool {
        let why = self.trimmed();
        self.give_up(context, number, &why)
    }

    /// As [`Session::end_trimmed`], for what a former owner sent and no log holds.
    pub(crate) fn end_lost(&mut self, context: &mut StepContext<'_>, number: u64) -> bool {
        self.give_up(context, number, LOST)
    }

    fn give_up(&mut self, context: &mut StepContext<'_>, number: u64, why: &str) -> bool {
        let Some(stream) = self.streams.get(number) else { return false };
        if stream.is_standalone() {
            for method in self.server_lists() {
                let notification = Notification::new(method, None);
                self.write_event(context, number, notification.raw().clone());
            }
            return true;
        }
        let requests = stream.requests.clone();
        if !stream.closed {
            let open: Vec<_> = requests.iter().filter(|owed| owed.final_response == 0).collect();
            for Owed { id, .. } in open {
                self.abandon_request(context, id);
                // Another connection that resumes the stream finds the same final response.
                let mark = Mark::FinalResponse(id.clone());
                self.write_event_marked(context, number, error(id, why), mark);
            }
            self.close_stream(context, number);
        }
        if let Some((sink, sent)) = self.attachment(number).map(|a| (a.sink, a.sent)) {
            self.write_undelivered(context, sink, &requests, sent, why);
            self.finish(context, sink, Ending::Proper);
        }
        false
    }

    /// Writes the error that ends the requests of an ended stream whose final response did not
    /// come before `sent`.
    pub(crate) fn write_trimmed(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        requests: &[Owed],
        sent: u64,
    ) {
        let why = self.trimmed();
        self.write_undelivered(context, sink, requests, sent, &why);
    }

    /// As [`Session::write_trimmed`], for what a former owner sent and no log holds.
    pub(crate) fn write_lost(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        requests: &[Owed],
        sent: u64,
    ) {
        self.write_undelivered(context, sink, requests, sent, LOST);
    }

    /// Why a request ends with an error whose messages were trimmed.
    fn trimmed(&self) -> String {
        let Limits { log_events_max, log_bytes_max, message_bytes_max, replay_secs, .. } =
            *self.limits;
        format!(
            "messages of this request were dropped before the client came back for them; a session \
             keeps at most {log_events_max} events (sessions.log_events_max) and {log_bytes_max} \
             bytes (sessions.log_bytes_max, for a moment plus the {message_bytes_max} bytes of \
             sessions.message_bytes_max) for {replay_secs} s (sessions.replay_secs)"
        )
    }

    fn write_undelivered(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        requests: &[Owed],
        sent: u64,
        why: &str,
    ) {
        let undelivered =
            requests.iter().filter(|owed| owed.final_response == 0 || owed.final_response > sent);
        for Owed { id, .. } in undelivered {
            let frame = Frame::Message { id: None, data: error(id, why) };
            context.effects.push(Effect::Write { sink, frame });
        }
    }
}

fn error(id: &protocol::RequestId, why: &str) -> Bytes {
    let code = ErrorCode::InternalError.number();
    Response::error(Some(id.clone()), code, why, None).raw().clone()
}

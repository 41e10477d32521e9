//! Resumes and new streams: a GET for a new standalone stream or for the events after one, or a
//! POST that was sent before.

use bytes::Bytes;
use protocol::{ErrorCode, Notification, RequestId, Response};

use crate::answering::Answering;
use crate::delivery::Delivery;
use crate::entry::Mark;
use crate::server_link::ServerLink;
use crate::step_context::StepContext;
use crate::stream::{StreamRequest, Tombstone};
use crate::{Answer, Ending, EventId, Fact, Limits, Refusal, ResumeOutcome, SinkId};

/// The error text for a request whose messages no log holds.
const LOST: &str = "messages of this request were lost with the node that sent them";

/// The parts of a session that a client resumes.
pub(crate) struct Resuming<'a> {
    pub(crate) delivery: Delivery<'a>,
    pub(crate) link: &'a mut ServerLink,
}

impl Resuming<'_> {
    /// The client opened a GET stream, perhaps to resume one after an event.
    pub(crate) fn open_or_resume(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        after: Option<&str>,
    ) {
        let Some(after) = after else {
            self.open_standalone(context, sink);
            return;
        };
        let outcome = match EventId::parse(after) {
            Some(id) => self.resume_after(context, sink, id),
            None => ResumeOutcome::Unknown,
        };
        match outcome {
            ResumeOutcome::Unknown => context.refuse_sink(sink, Refusal::UnknownEvent),
            ResumeOutcome::Finished => context.refuse_sink(sink, Refusal::NothingMore),
            ResumeOutcome::Replayed | ResumeOutcome::Trimmed => {}
        }
        context.count_fact(Fact::Resumed(outcome));
    }

    /// A new standalone stream, with the messages that wait for one.
    fn open_standalone(&mut self, context: &mut StepContext<'_>, sink: SinkId) -> u64 {
        let Answering { streams, handshake, .. } = &mut self.delivery.answering;
        let stream = streams.open_standalone(context, handshake.revision(), sink);
        self.delivery.send_waiting(context);
        stream
    }

    /// A new standalone stream instead of one that is lost: notifies the client to list again
    /// what may have changed.
    fn replace_standalone(&mut self, context: &mut StepContext<'_>, sink: SinkId) -> ResumeOutcome {
        let stream = self.open_standalone(context, sink);
        self.write_list_changes(context, stream);
        ResumeOutcome::Trimmed
    }

    /// Notifies the client of changes of all lists, as it may have missed one.
    fn write_list_changes(&mut self, context: &StepContext<'_>, stream: u64) {
        let Answering { streams, handshake, .. } = &mut self.delivery.answering;
        for method in handshake.promised_lists() {
            let notification = Notification::new(method, None);
            streams.write_event(context, stream, notification.raw().clone(), Mark::Plain);
        }
    }

    /// Resumes after an event (SSE-07): on its own stream only (SSE-08), whatever the stream
    /// began as (SSE-09).
    fn resume_after(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        id: EventId,
    ) -> ResumeOutcome {
        let streams = &*self.delivery.answering.streams;
        let log = streams.log();
        let Some(run) = log.owner_tags().run(id.owner_tag) else {
            return ResumeOutcome::Unknown;
        };
        if log.owner_tags().rank_of(id.stream) > run.rank || id.number < run.from {
            // The client means a stream that was lost with its owner; this is another one.
            return ResumeOutcome::Unknown;
        }
        // Entries of a former owner after its last stored one were lost with it.
        let lost = run.end.filter(|end| *end <= id.number && !mutant!("resume_what_was_lost"));
        let after = lost.map_or(id.number, |end| end - 1);
        if after > log.acknowledged() {
            return ResumeOutcome::Unknown;
        }
        let Some(stream) = streams.get(id.stream) else {
            return self.resume_finished(context, sink, id.stream, after);
        };
        // The entry may have been trimmed; otherwise it must belong to this stream.
        let is_ours = |number| log.get(number).is_none_or(|logged| logged.stream == id.stream);
        if lost.is_none() && (!is_ours(id.number) || id.number > stream.last) {
            return ResumeOutcome::Unknown;
        }
        if id.number < id.stream {
            return ResumeOutcome::Unknown;
        }
        if stream.closed && stream.is_standalone() && after.max(stream.trimmed) >= stream.last {
            return self.replace_standalone(context, sink);
        }
        if stream.closed && after >= stream.last {
            return ResumeOutcome::Finished;
        }
        if lost.is_some() || mutant!("every_resumed_stream_is_lost") {
            return self.resume_lost(context, sink, id.stream, after);
        }
        self.attach_and_replay(context, sink, id.stream, after)
    }

    /// The entries `after` this one were lost with their owner, and the client received some of
    /// them: the events that it could get now would have a hole before them.
    fn resume_lost(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        number: u64,
        after: u64,
    ) -> ResumeOutcome {
        let Some(stream) = self.delivery.answering.streams.get(number) else {
            return ResumeOutcome::Unknown;
        };
        if stream.is_standalone() {
            return self.replace_standalone(context, sink);
        }
        let requests = stream.requests.clone();
        self.end_requests(context, number, LOST);
        context.open_sink_without_id(sink);
        write_undelivered(context, sink, &requests, after, LOST);
        context.finish_sink(sink, Ending::Proper);
        ResumeOutcome::Trimmed
    }

    /// Attaches a connection to a stream, to send the entries after one.
    fn attach_and_replay(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        number: u64,
        after: u64,
    ) -> ResumeOutcome {
        let Answering { streams, handshake, .. } = &mut self.delivery.answering;
        let (revision, trimmed) = (handshake.revision(), trimmed_through(streams.get(number)));
        streams.displace_listener(context, number);
        streams.attach_sink(context, revision, sink, number, after);
        streams.open_head(context, revision, number, after);
        let has_hole = after < trimmed && !mutant!("resume_over_a_hole");
        if has_hole {
            // A hole is never hidden. A standalone stream continues with the remaining events. If it is
            // closed, the stream that replaces it says what may have changed.
            let why = trimmed_text(context.limits());
            if !self.end_requests(context, number, &why) {
                return ResumeOutcome::Trimmed;
            }
            // The withdrawal of the lost request was sent on it.
            self.delivery.answering.streams.skip_to(number, after.max(trimmed));
        }
        self.delivery.answering.streams.replay_entries(context, number, sink, after);
        self.delivery.send_waiting(context);
        if has_hole { ResumeOutcome::Trimmed } else { ResumeOutcome::Replayed }
    }

    /// Only the tombstone of the stream is left, if that.
    fn resume_finished(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        stream: u64,
        after: u64,
    ) -> ResumeOutcome {
        let tombstone = self.delivery.answering.streams.tombstone(stream);
        let Some(Tombstone { last, requests, .. }) = tombstone else {
            return ResumeOutcome::Unknown;
        };
        if requests.is_empty() {
            return self.replace_standalone(context, sink);
        }
        if after >= *last {
            return ResumeOutcome::Finished;
        }
        context.open_sink_without_id(sink);
        write_undelivered(context, sink, requests, after, &trimmed_text(context.limits()));
        context.finish_sink(sink, Ending::Proper);
        ResumeOutcome::Trimmed
    }

    /// Some events of a stream are lost, and its client still resumes it: its requests end with
    /// an error. Returns whether the stream continues, as a standalone one does.
    fn end_requests(&mut self, context: &mut StepContext<'_>, number: u64, why: &str) -> bool {
        let Some(stream) = self.delivery.answering.streams.get(number) else { return false };
        let (requests, is_closed) = (stream.requests.clone(), stream.closed);
        if stream.is_standalone() {
            if !is_closed {
                self.write_list_changes(context, number);
            }
            return true;
        }
        if !is_closed {
            for StreamRequest { id, .. } in requests.iter().filter(|request| !request.is_settled())
            {
                self.abandon_request(context, id);
                // Another connection that resumes the stream gets the same final response.
                let (data, mark) = (error(id, why), Mark::FinalResponse(id.clone()));
                self.delivery.answering.streams.write_event(context, number, data, mark);
            }
            self.delivery.answering.streams.close_stream(context, number);
        }
        let streams = &mut *self.delivery.answering.streams;
        if let Some((sink, sent)) = streams.listener(number) {
            write_undelivered(context, sink, &requests, sent, why);
            streams.finish_sink(context, sink, Ending::Proper);
        }
        false
    }

    /// Ends a request without the server's answer and without a final response here: its client
    /// gets that on another connection.
    fn abandon_request(&mut self, context: &mut StepContext<'_>, id: &RequestId) {
        let Answering { posts, ended, .. } = &mut self.delivery.answering;
        let Some(exchange) = posts.take_exchange(|exchange| exchange.id == *id) else { return };
        posts.take_post(exchange.post);
        self.link.cancel_request(context, ended, id, "its messages were dropped");
    }

    /// Attaches a POST that was sent again to the stream or POST that already answers its
    /// request. Returns false if there is none.
    pub(crate) fn rejoin_request(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        id: &RequestId,
    ) -> bool {
        let answering = &mut self.delivery.answering;
        if let Some((answer, waits)) = answering.kept.result_of(id) {
            answering.answer_post(context, Some(sink), answer, waits);
            return true;
        }
        if let Some(stream) = answering.streams.stream_of(id) {
            self.attach_from_the_beginning(context, sink, stream);
            return true;
        }
        if let Some(tombstone) = answering.streams.tombstone_of(id) {
            context.open_sink_without_id(sink);
            let why = trimmed_text(context.limits());
            write_undelivered(context, sink, &tombstone.requests, 0, &why);
            answering.streams.finish_sink(context, sink, Ending::Proper);
            return true;
        }
        self.take_over_post(context, sink, id)
    }

    /// Attaches a connection to a stream as if the stream had just been opened for it.
    fn attach_from_the_beginning(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        number: u64,
    ) {
        let Answering { streams, handshake, .. } = &mut self.delivery.answering;
        let trimmed = trimmed_through(streams.get(number));
        if streams.log().acknowledged().max(trimmed) >= number {
            self.attach_and_replay(context, sink, number, number);
            return;
        }
        // Its head is written when the log holds it.
        streams.displace_listener(context, number);
        streams.attach_sink(context, handshake.revision(), sink, number, number - 1);
    }

    /// Makes a POST that was sent again the one that waits for a request in flight.
    fn take_over_post(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        id: &RequestId,
    ) -> bool {
        let Some(post) = self.delivery.answering.posts.held_post_of(id) else { return false };
        let number = post.id;
        if let Some(older) = post.sink.replace(sink) {
            context.answer_sink(older, Answer::Nothing);
        }
        self.delivery.send_waiting_to_post(context, number);
        true
    }
}

/// The number of the newest entry of a stream that was trimmed.
fn trimmed_through(stream: Option<&crate::stream::Stream>) -> u64 {
    stream.map_or(0, |stream| stream.trimmed)
}

/// Writes the error that ends the requests of an ended stream whose final response was not
/// among the entries up to `sent`.
fn write_undelivered(
    context: &mut StepContext<'_>,
    sink: SinkId,
    requests: &[StreamRequest],
    sent: u64,
    why: &str,
) {
    let is_undelivered =
        |request: &&StreamRequest| !request.is_settled() || request.final_response > sent;
    for StreamRequest { id, .. } in requests.iter().filter(is_undelivered) {
        context.write_message(sink, None, error(id, why));
    }
}

/// The error text for a request whose messages were trimmed.
fn trimmed_text(limits: &Limits) -> String {
    let Limits { log_events_max, log_bytes_max, message_bytes_max, replay_secs, .. } = *limits;
    format!(
        "messages of this request were dropped before the client came back for them; a session \
         keeps at most {log_events_max} events (sessions.log_events_max) and {log_bytes_max} \
         bytes (sessions.log_bytes_max, for a moment plus the {message_bytes_max} bytes of \
         sessions.message_bytes_max) for {replay_secs} s (sessions.replay_secs)"
    )
}

fn error(id: &RequestId, why: &str) -> Bytes {
    let code = ErrorCode::InternalError.number();
    Response::error(Some(id.clone()), code, why, None).raw().clone()
}

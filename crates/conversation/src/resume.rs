//! GET: a new standalone stream, or one that goes on after an event.

use crate::log::What;
use crate::session::{Session, Turn};
use crate::stream::{Stream, Tombstone};
use crate::{Answer, Effect, Ending, EventId, Fact, Frame, Refusal, ResumeOutcome, SinkId};

impl Session {
    pub(crate) fn listened(&mut self, turn: &mut Turn<'_>, sink: SinkId, after: Option<&str>) {
        let Some(after) = after else {
            self.listen_afresh(turn, sink);
            return;
        };
        let outcome = match EventId::parse(after) {
            Some(id) => self.resume(turn, sink, id),
            None => ResumeOutcome::Unknown,
        };
        let refusal = match outcome {
            ResumeOutcome::Unknown => Some(Refusal::UnknownEvent),
            ResumeOutcome::Finished => Some(Refusal::NothingMore),
            ResumeOutcome::Replayed | ResumeOutcome::Trimmed => None,
        };
        if let Some(refusal) = refusal {
            turn.effects.push(Effect::Answer { sink, answer: Answer::Refused(refusal) });
        }
        turn.effects.push(Effect::Tell(Fact::Resumed(outcome)));
    }

    /// A standalone stream. At the bound the one that was told nothing for longest is let go (GET-09).
    fn listen_afresh(&mut self, turn: &mut Turn<'_>, sink: SinkId) -> u64 {
        let standalone = |stream: &u64| self.streams.get(stream).is_some_and(Stream::is_standalone);
        let attached = self.attachments.iter().filter(|a| standalone(&a.stream));
        if attached.clone().count() >= self.limits.standalone_max {
            let idlest = attached.min_by_key(|a| (a.told_at, a.stream)).map(|a| (a.sink, a.open));
            if let Some((idlest, open)) = idlest {
                if !open {
                    turn.effects.push(Effect::Open { sink: idlest, welcome: false, at: None });
                }
                self.finish(turn, idlest, Ending::Proper);
            }
        }
        let stream = self.open_stream(turn, Some(sink), Vec::new(), None);
        self.tell_waiting(turn);
        stream
    }

    /// Goes on after an event (SSE-07): on its own stream only (SSE-08), whatever the
    /// stream began as (SSE-09).
    fn resume(&mut self, turn: &mut Turn<'_>, sink: SinkId, id: EventId) -> ResumeOutcome {
        let is_ours = id.emitter == self.emitter;
        if !self.knows(id.emitter) || (is_ours && id.number > self.log.acknowledged()) {
            return ResumeOutcome::Unknown;
        }
        let Some(stream) = self.streams.get(&id.stream) else {
            return self.resume_finished(turn, sink, id);
        };
        if self.is_after(stream.opener, id.emitter) {
            // The one that is meant was lost with its owner, and this is another.
            return ResumeOutcome::Unknown;
        }
        // The entry may be trimmed; if it is there it must be this stream's own.
        let entry = self.log.get(id.number);
        let is_same = entry.is_none_or(|logged| logged.emitter == id.emitter);
        if !is_same || (!is_ours && id.number > self.log.acknowledged()) {
            return self.resume_lost(turn, sink, id.stream);
        }
        let foreign = entry.is_some_and(|logged| logged.stream != id.stream);
        if foreign || id.number < id.stream || id.number > stream.last {
            return ResumeOutcome::Unknown;
        }
        let (closed, last) = (stream.closed, stream.last);
        if closed && id.number >= last {
            return ResumeOutcome::Finished;
        }
        self.resume_from(turn, sink, id)
    }

    /// Tells a stream what follows an event.
    pub(crate) fn resume_from(
        &mut self,
        turn: &mut Turn<'_>,
        sink: SinkId,
        id: EventId,
    ) -> ResumeOutcome {
        let trimmed = self.streams.get(&id.stream).map_or(0, |stream| stream.trimmed);
        self.displace(turn, id.stream);
        self.attach(turn, sink, id.stream, id.number);
        self.open_head(turn, id);
        let lost = id.number < trimmed;
        if lost && !self.end_trimmed(turn, id.stream) {
            return ResumeOutcome::Trimmed;
        }
        let missed: Vec<_> = self
            .log
            .replay(id.stream, id.number)
            .map(|(number, logged)| {
                (EventId { number, emitter: logged.emitter, ..id }, logged.what.clone())
            })
            .collect();
        for (id, what) in missed {
            self.replay_one(turn, sink, id, &what);
        }
        self.tell_waiting(turn);
        if lost { ResumeOutcome::Trimmed } else { ResumeOutcome::Replayed }
    }

    fn replay_one(&mut self, turn: &mut Turn<'_>, sink: SinkId, id: EventId, what: &What) {
        match what {
            What::Opened { .. } | What::Answered { .. } | What::Checkpoint(_) => {}
            What::Event { data, .. } => {
                if let Some(attachment) = self.attachment(id.stream) {
                    attachment.sent = id.number;
                }
                let frame = Frame::Message { id: Some(id), data: data.clone() };
                self.write(turn, sink, frame);
            }
            What::Closed => self.finish(turn, sink, Ending::Proper),
        }
    }

    /// What the client saw last was lost together with two owners: what came after it on
    /// the stream cannot be told. Its requests end with an error.
    fn resume_lost(&mut self, turn: &mut Turn<'_>, sink: SinkId, stream: u64) -> ResumeOutcome {
        self.displace(turn, stream);
        let standalone = self.streams.get(&stream).is_none_or(Stream::is_standalone);
        if standalone {
            let fresh = self.listen_afresh(turn, sink);
            self.tell_lists(turn, fresh);
            return ResumeOutcome::Trimmed;
        }
        let requests = self.streams.get(&stream).map(|s| s.requests.clone()).unwrap_or_default();
        let ids: Vec<_> = requests.iter().map(|owed| owed.id.clone()).collect();
        self.abandon_requests(turn, &ids);
        self.close_stream(turn, stream);
        turn.effects.push(Effect::Open { sink, welcome: false, at: None });
        self.write_trimmed(turn, sink, &requests, 0);
        turn.effects.push(Effect::Finish { sink, ending: Ending::Proper });
        ResumeOutcome::Trimmed
    }

    /// Tells a client that may have missed something to list everything anew.
    fn tell_lists(&mut self, turn: &Turn<'_>, stream: u64) {
        for method in self.server_lists() {
            let notification = protocol::Notification::new(method, None);
            self.emit(turn, stream, notification.raw().clone());
        }
    }

    /// A newer resume of a stream displaces whoever listened to it.
    pub(crate) fn displace(&mut self, turn: &mut Turn<'_>, stream: u64) {
        let Some(attachment) = self.attachment(stream) else { return };
        let (sink, open) = (attachment.sink, attachment.open);
        if !open {
            turn.effects.push(Effect::Open { sink, welcome: false, at: None });
        }
        self.finish(turn, sink, Ending::Proper);
    }

    /// Nothing of the stream is left but its tombstone, if that.
    fn resume_finished(&mut self, turn: &mut Turn<'_>, sink: SinkId, id: EventId) -> ResumeOutcome {
        let meant = |stone: &&Tombstone| {
            stone.stream == id.stream && !self.is_after(stone.opener, id.emitter)
        };
        let Some(Tombstone { last, requests, .. }) = self.finished.iter().find(meant) else {
            return ResumeOutcome::Unknown;
        };
        if requests.is_empty() {
            let stream = self.listen_afresh(turn, sink);
            self.tell_lists(turn, stream);
            return ResumeOutcome::Trimmed;
        }
        if id.number >= *last {
            return ResumeOutcome::Finished;
        }
        let requests = requests.clone();
        turn.effects.push(Effect::Open { sink, welcome: false, at: None });
        self.write_trimmed(turn, sink, &requests, id.number);
        turn.effects.push(Effect::Finish { sink, ending: Ending::Proper });
        ResumeOutcome::Trimmed
    }
}

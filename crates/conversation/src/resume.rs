//! GET: a new standalone stream, or one that goes on after an event.

use crate::entry::EntryKind;
use crate::session::{Session, StepContext};
use crate::stream::{Stream, Tombstone};
use crate::{Answer, Effect, Ending, EventId, Fact, Frame, Refusal, ResumeOutcome, SinkId};

impl Session {
    pub(crate) fn listened(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        after: Option<&str>,
    ) {
        if self.takes_nothing() {
            context.effects.push(Effect::Answer { sink, answer: Answer::Refused(Refusal::Moved) });
            return;
        }
        let Some(after) = after else {
            self.listen_afresh(context, sink);
            self.want_link(context);
            return;
        };
        let outcome = match EventId::parse(after) {
            Some(id) => self.resume(context, sink, id),
            None => ResumeOutcome::Unknown,
        };
        let refusal = match outcome {
            ResumeOutcome::Unknown => Some(Refusal::UnknownEvent),
            ResumeOutcome::Finished => Some(Refusal::NothingMore),
            ResumeOutcome::Replayed | ResumeOutcome::Trimmed => None,
        };
        if let Some(refusal) = refusal {
            context.effects.push(Effect::Answer { sink, answer: Answer::Refused(refusal) });
        }
        context.effects.push(Effect::Tell(Fact::Resumed(outcome)));
        self.want_link(context);
    }

    /// Who listens wants to hear the server, so it is started where it is kept running
    /// anyway, or where it was asked to tell of changes.
    fn want_link(&mut self, context: &mut StepContext<'_>) {
        let kept = self.idle_stop_secs.is_none() || !self.subscriptions().is_empty();
        if kept && self.is_live() && !self.attachments.is_empty() && self.leaving.is_none() {
            self.open_link(context);
        }
    }

    /// A standalone stream. At the bound the one that was sent nothing for longest is closed
    /// (GET-09).
    fn listen_afresh(&mut self, context: &mut StepContext<'_>, sink: SinkId) -> u64 {
        let standalone =
            |stream: &u64| self.streams.get(*stream).is_some_and(Stream::is_standalone);
        let attached = self.attachments.iter().filter(|a| standalone(&a.stream));
        if attached.clone().count() >= self.limits.standalone_max {
            let idlest = attached.min_by_key(|a| (a.told_at, a.stream)).map(|a| (a.sink, a.open));
            if let Some((idlest, open)) = idlest {
                if !open {
                    context.effects.push(Effect::Open { sink: idlest, welcome: false, at: None });
                }
                self.finish(context, idlest, Ending::Proper);
            }
        }
        let stream = self.open_stream(context, Some(sink), Vec::new(), None);
        self.tell_waiting(context);
        stream
    }

    /// Goes on after an event (SSE-07): on its own stream only (SSE-08), whatever the
    /// stream began as (SSE-09).
    fn resume(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        id: EventId,
    ) -> ResumeOutcome {
        let Some(run) = self.log.owner_tags.run(id.owner_tag) else {
            return ResumeOutcome::Unknown;
        };
        if self.log.owner_tags.rank_of(id.stream) > run.rank || id.number < run.from {
            // The stream that is meant was lost with its owner; this is another's.
            return ResumeOutcome::Unknown;
        }
        // What a former owner wrote beyond what is left of it was lost with it.
        let lost = run.end.filter(|end| *end <= id.number && !mutant!("resume_what_was_lost"));
        let after = lost.map_or(id.number, |end| end - 1);
        if after > self.log.acknowledged() {
            return ResumeOutcome::Unknown;
        }
        let Some(stream) = self.streams.get(id.stream) else {
            return self.resume_finished(context, sink, id.stream, after);
        };
        // The entry may be gone; if it is there it must be this stream's own.
        let is_ours = |number| self.log.get(number).is_none_or(|logged| logged.stream == id.stream);
        if lost.is_none() && (!is_ours(id.number) || id.number > stream.last) {
            return ResumeOutcome::Unknown;
        }
        if id.number < id.stream {
            return ResumeOutcome::Unknown;
        }
        if stream.closed && after >= stream.last {
            if stream.is_standalone() {
                return self.listen_anew(context, sink);
            }
            return ResumeOutcome::Finished;
        }
        if lost.is_some() || mutant!("every_resumed_stream_is_lost") {
            return self.resume_lost(context, sink, id.stream, after);
        }
        self.go_on(context, sink, id.stream, after)
    }

    /// What came `after` an entry and before another owner went on was lost, and the client
    /// saw some of it: everything that is sent to it now would have a hole before it.
    fn resume_lost(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        number: u64,
        after: u64,
    ) -> ResumeOutcome {
        let Some(stream) = self.streams.get(number) else { return ResumeOutcome::Unknown };
        if stream.is_standalone() {
            return self.listen_anew(context, sink);
        }
        let requests = stream.requests.clone();
        self.end_lost(context, number);
        context.effects.push(Effect::Open { sink, welcome: false, at: None });
        self.write_lost(context, sink, &requests, after);
        context.effects.push(Effect::Finish { sink, ending: Ending::Proper });
        ResumeOutcome::Trimmed
    }

    /// Attaches a connection to a stream, to tell what comes after an entry.
    fn go_on(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        number: u64,
        after: u64,
    ) -> ResumeOutcome {
        let trimmed = self.streams.get(number).map_or(0, |stream| stream.trimmed);
        self.displace(context, number);
        self.attach(context, sink, number, after);
        self.open_head(context, number, after);
        let holes = after < trimmed && !mutant!("resume_over_a_hole");
        if holes && !self.end_trimmed(context, number) {
            return ResumeOutcome::Trimmed;
        }
        if let Some(attachment) = self.attachment(number).filter(|_| holes) {
            // The withdrawal of what is lost was sent on it.
            attachment.sent = after.max(trimmed);
        }
        let after = if mutant!("replay_skips_an_event") { after + 1 } else { after };
        let after = if mutant!("replay_repeats_an_event") { after - 1 } else { after };
        let missed: Vec<_> =
            self.log.replay(number, after).map(|(at, what)| (at, what.clone())).collect();
        for (at, what) in missed {
            self.replay_one(context, number, sink, at, &what);
        }
        self.tell_waiting(context);
        if holes { ResumeOutcome::Trimmed } else { ResumeOutcome::Replayed }
    }

    /// Attaches a connection to a stream as if it had just been opened for it.
    pub(crate) fn attach_from_the_beginning(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        number: u64,
    ) {
        let trimmed = self.streams.get(number).map_or(0, |stream| stream.trimmed);
        if self.log.acknowledged().max(trimmed) >= number {
            self.go_on(context, sink, number, number);
            return;
        }
        // Its head is written when the log holds it.
        self.displace(context, number);
        self.attach(context, sink, number, number - 1);
    }

    fn replay_one(
        &mut self,
        context: &mut StepContext<'_>,
        stream: u64,
        sink: SinkId,
        number: u64,
        what: &EntryKind,
    ) {
        match what {
            EntryKind::Event { data, .. } => {
                if let Some(attachment) = self.attachment(stream) {
                    attachment.sent = number;
                }
                let id = Some(self.log.owner_tags.id(stream, number));
                let frame = Frame::Message { id, data: data.clone() };
                context.effects.push(Effect::Write { sink, frame });
            }
            EntryKind::Closed => self.finish(context, sink, Ending::Proper),
            _ => {}
        }
    }

    /// Ends the connection that listens to a stream, as when a newer resume replaces it.
    pub(crate) fn displace(&mut self, context: &mut StepContext<'_>, stream: u64) {
        let Some(attachment) = self.attachment(stream) else { return };
        let (sink, open) = (attachment.sink, attachment.open);
        if !open {
            context.effects.push(Effect::Open { sink, welcome: false, at: None });
        }
        self.finish(context, sink, Ending::Proper);
    }

    /// Nothing of the stream is left but its tombstone, if that.
    fn resume_finished(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        stream: u64,
        after: u64,
    ) -> ResumeOutcome {
        let meant = |tombstone: &&Tombstone| tombstone.stream == stream;
        let Some(Tombstone { last, requests, .. }) = self.finished.iter().find(meant) else {
            return ResumeOutcome::Unknown;
        };
        if requests.is_empty() {
            return self.listen_anew(context, sink);
        }
        if after >= *last {
            return ResumeOutcome::Finished;
        }
        let requests = requests.clone();
        context.effects.push(Effect::Open { sink, welcome: false, at: None });
        self.write_trimmed(context, sink, &requests, after);
        context.effects.push(Effect::Finish { sink, ending: Ending::Proper });
        ResumeOutcome::Trimmed
    }

    /// A new standalone stream instead of one that is no more.
    fn listen_anew(&mut self, context: &mut StepContext<'_>, sink: SinkId) -> ResumeOutcome {
        let stream = self.listen_afresh(context, sink);
        for method in self.server_lists() {
            let notification = protocol::Notification::new(method, None);
            self.write_event(context, stream, notification.raw().clone());
        }
        ResumeOutcome::Trimmed
    }
}

//! The connections that listen to streams of the log: at most one to each.

use protocol::Revision;
use thin_vec::ThinVec;

use crate::earliest::Earliest;
use crate::step_context::StepContext;
use crate::{Millis, SinkId};

/// How long the head of a response waits until the log holds its stream, in milliseconds. Then it
/// is written without an event id, so that the client gets a response.
const HEAD_WAIT_MS: u64 = 4_000;

/// How much later a connection ends that has reached its maximum age while its client had no event
/// id to resume the stream with, in milliseconds.
const POLL_AGAIN_MS: u64 = 1_000;

/// The connections that listen.
#[derive(Default)]
pub(super) struct Attachments(ThinVec<Attachment>);

/// A connection that listens to a stream of the log.
pub(super) struct Attachment {
    pub(super) sink: SinkId,
    pub(super) stream: u64,
    /// The number of the newest entry written to it.
    pub(super) sent: u64,
    /// Was the response's head written?
    pub(super) open: bool,
    /// Has the client an event id of the stream to resume it with?
    pub(super) resumable: bool,
    /// When a message was last written to it.
    pub(super) sent_at: Millis,
    /// When the head is written even if the log does not hold the stream yet.
    head_by: Millis,
    ping_at: Option<Millis>,
    poll_at: Option<Millis>,
}

impl Attachments {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Attaches a connection to a stream, whose entries up to `sent` it has.
    pub(super) fn attach(
        &mut self,
        context: &StepContext<'_>,
        revision: Revision,
        (sink, stream, sent): (SinkId, u64, u64),
        is_standalone: bool,
    ) {
        let limits = context.limits();
        let pings = is_standalone && limits.ping_secs > 0;
        let polls = limits.stream_secs > 0 && revision.has_priming();
        if self.0.is_empty() {
            // Most clients open one stream and keep it.
            self.0.reserve_exact(1);
        }
        self.0.push(Attachment {
            sink,
            stream,
            sent,
            open: false,
            resumable: false,
            head_by: context.now.plus(HEAD_WAIT_MS),
            ping_at: pings.then(|| context.now.plus(limits.ping_secs * 1_000)),
            sent_at: context.now,
            poll_at: polls.then(|| context.now.plus(limits.stream_secs * 1_000)),
        });
    }

    pub(super) fn of(&self, stream: u64) -> Option<&Attachment> {
        self.0.iter().find(|attachment| attachment.stream == stream)
    }

    pub(super) fn of_mut(&mut self, stream: u64) -> Option<&mut Attachment> {
        self.0.iter_mut().find(|attachment| attachment.stream == stream)
    }

    /// The streams with a listening connection.
    pub(super) fn streams(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|attachment| attachment.stream)
    }

    /// If `most` or more connections listen to such streams: the one that was idle longest, and
    /// whether its head is written.
    pub(super) fn idlest_beyond(
        &self,
        most: usize,
        is_counted: impl Fn(u64) -> bool,
    ) -> Option<(SinkId, bool)> {
        let counted = self.0.iter().filter(|attachment| is_counted(attachment.stream));
        if counted.clone().count() < most {
            return None;
        }
        counted.min_by_key(|a| (a.sent_at, a.stream)).map(|a| (a.sink, a.open))
    }

    /// Removes a connection. Returns whether it was attached.
    pub(super) fn remove(&mut self, sink: SinkId) -> bool {
        let before = self.0.len();
        self.0.retain(|attachment| attachment.sink != sink);
        self.0.len() < before
    }

    pub(super) fn take_all(&mut self) -> ThinVec<Attachment> {
        std::mem::take(&mut self.0)
    }

    /// Marks the heads as written that wait for the log for too long, and returns their
    /// connections.
    pub(super) fn open_late(&mut self, now: Millis) -> impl Iterator<Item = SinkId> {
        let late = self.0.iter_mut().filter(move |a| !a.open && a.head_by <= now);
        late.map(|attachment| {
            attachment.open = true;
            attachment.sink
        })
    }

    /// The connections that have reached their maximum age, and the streams whose clients are due
    /// for a ping.
    pub(super) fn take_due(&mut self, context: &StepContext<'_>) -> (Vec<SinkId>, Vec<u64>) {
        let (now, ping_secs) = (context.now, context.limits().ping_secs);
        let (mut polls, mut pings) = (Vec::new(), Vec::new());
        for attachment in &mut self.0 {
            if attachment.poll_at.is_some_and(|at| at <= now) {
                if attachment.resumable {
                    attachment.poll_at = None;
                    polls.push(attachment.sink);
                    continue;
                }
                attachment.poll_at = Some(now.plus(POLL_AGAIN_MS));
            }
            if attachment.ping_at.is_some_and(|at| at <= now) {
                attachment.ping_at = Some(now.plus(ping_secs * 1_000));
                pings.push(attachment.stream);
            }
        }
        (polls, pings)
    }

    pub(super) fn note_deadlines(&self, earliest: &mut Earliest) {
        for attachment in &self.0 {
            earliest.add_deadline_if_any(attachment.ping_at);
            earliest.add_deadline_if_any(attachment.poll_at);
            if !attachment.open {
                earliest.add_deadline(attachment.head_by);
            }
        }
    }

    /// Has a connection of this stream not got this entry yet?
    pub(super) fn awaits(&self, stream: u64, number: u64) -> bool {
        self.0.iter().any(|a| a.stream == stream && a.sent < number)
    }

    /// Frees unused memory.
    pub(super) fn shrink(&mut self) {
        if self.0.is_empty() {
            self.0 = ThinVec::new();
        }
    }
}

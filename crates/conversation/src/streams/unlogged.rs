//! Events that wait for the store for too long: heads of responses and final responses.
//!
//! An event id is written to a client only once the log holds the event. If the store does not
//! acknowledge, a client gets the head and the final response of its request without ids. Such a
//! stream cannot be resumed from there, but no event of it is lost. The entries stay in the log,
//! and are appended when the store accepts them again.

use bytes::Bytes;

use super::Streams;
use crate::entry::{EntryKind, Mark};
use crate::step_context::StepContext;
use crate::write_barrier::{WriteBarrier, error_for_result, unacknowledged};
use crate::{Ending, Frame, Limits, Millis, SinkId};

impl Streams {
    /// The oldest final response that a connection waits for and the log does not hold: its
    /// stream, and when it is written anyway.
    pub(super) fn withheld_response(&self, limits: &Limits) -> Option<(u64, Millis)> {
        if !self.log.has_unheld_final() || !self.has_listeners() {
            return None;
        }
        let mut unheld = self.log.acknowledged() + 1..self.log.next();
        unheld.find_map(|number| {
            let logged = self.log.get(number)?;
            let is_final =
                matches!(&logged.what, EntryKind::Event { mark: Mark::FinalResponse(_), .. });
            (is_final && self.attachments.awaits(logged.stream, number))
                .then(|| (logged.stream, logged.at().plus(limits.hold_ms)))
        })
    }

    /// Writes the heads and final responses that have waited for the store for too long.
    pub(crate) fn write_withheld(&mut self, context: &mut StepContext<'_>, barrier: &WriteBarrier) {
        let now = context.now;
        for sink in self.attachments.open_late(now) {
            write_head(context, sink);
        }
        let limits = context.limits();
        while let Some((stream, until)) = self.withheld_response(limits)
            && until <= now
        {
            self.write_unlogged(context, barrier, stream, self.log.newest());
        }
    }

    /// Writes the entries that a stream's connection did not get yet, up to and including this
    /// one, without event ids.
    pub(super) fn write_unlogged(
        &mut self,
        context: &mut StepContext<'_>,
        barrier: &WriteBarrier,
        stream: u64,
        through: u64,
    ) {
        self.write_some_unlogged(context, barrier, stream, through, |_| true);
    }

    /// Writes everything that waits for the store, because the session ends here: everything
    /// except server requests. No answer to them is accepted any more. If the end is lost with
    /// this owner, the next one may run the call again, and would not know that its client has
    /// the server request.
    pub(crate) fn write_all_unlogged(
        &mut self,
        context: &mut StepContext<'_>,
        barrier: &WriteBarrier,
    ) {
        let through = self.log.newest();
        let has_unheld = !self.log.is_held() && !mutant!("end_without_the_final_responses");
        let streams: Vec<u64> = self.attachments.streams().collect();
        for stream in streams.into_iter().filter(|_| has_unheld) {
            let is_wanted = |mark: &Mark| !matches!(mark, Mark::ServerRequest(_));
            self.write_some_unlogged(context, barrier, stream, through, is_wanted);
        }
    }

    /// As [`Streams::write_unlogged`], without the messages that do not match.
    fn write_some_unlogged(
        &mut self,
        context: &mut StepContext<'_>,
        barrier: &WriteBarrier,
        stream: u64,
        through: u64,
        is_wanted: impl Fn(&Mark) -> bool,
    ) {
        let attachment = self.attachments.of_mut(stream).filter(|a| a.sent < through);
        let Some(attachment) = attachment else { return };
        let (sink, sent) = (attachment.sink, attachment.sent);
        (attachment.sent, attachment.sent_at) = (through, context.now);
        if !std::mem::replace(&mut attachment.open, true) {
            write_head(context, sink);
        }
        let mut closes = false;
        for number in (sent + 1).max(self.log.first())..=through {
            let Some(logged) = self.log.get(number).filter(|logged| logged.stream == stream) else {
                continue;
            };
            match &logged.what {
                EntryKind::Event { data, mark } if is_wanted(mark) => {
                    let data = without_promise(context, barrier, number, data);
                    let is_named = mutant!("name_what_is_not_held");
                    let id = is_named.then(|| self.log.event_id(stream, number));
                    context.write_message(sink, id, data);
                }
                EntryKind::Closed => closes = true,
                _ => {}
            }
        }
        if closes {
            self.finish_sink(context, sink, Ending::Proper);
        }
    }
}

/// The form of a message before the store has acknowledged anything: a result that acknowledges a
/// change of the session becomes an error.
fn without_promise(
    context: &StepContext<'_>,
    barrier: &WriteBarrier,
    number: u64,
    data: &Bytes,
) -> Bytes {
    if barrier.holds_back(number) {
        return error_for_result(data.clone(), &unacknowledged(context.limits()));
    }
    data.clone()
}

/// Begins a response's body without an event id.
fn write_head(context: &mut StepContext<'_>, sink: SinkId) {
    context.open_sink_without_id(sink);
    context.write_frame(sink, Frame::KeepAlive);
}

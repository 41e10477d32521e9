//! What waits for the store, and how long: heads of responses, final responses, and answers
//! that acknowledge a change.
//!
//! An event id is written to a client only once the log holds the event. While the store
//! does not acknowledge, a client gets its response's head without an id, and its final
//! response without an id: such a stream cannot be resumed from there, but nothing of it is
//! lost. The entries stay in the log, and are appended when the store takes them again.

use bytes::Bytes;

use crate::gate::undone;
use crate::entry::{EntryKind, Mark};
use crate::session::{Session, StepContext};
use crate::{Effect, Ending, Frame, Millis};

impl Session {
    /// When something has waited for the store for too long.
    pub(crate) fn withheld_until(&self) -> Option<Millis> {
        // After every step, and so in plain loops.
        let mut first = self.withheld_response().map(|(_, until)| until);
        let mut at = |until| first = Some(first.map_or(until, |first: Millis| first.min(until)));
        self.attachments.iter().filter(|a| !a.open).for_each(|a| at(a.head_by));
        self.gated.iter().for_each(|gated| at(gated.until));
        first
    }

    /// The oldest final response that a connection waits for and the log does not hold: its
    /// stream, and when it is written all the same.
    fn withheld_response(&self) -> Option<(u64, Millis)> {
        if !self.log.has_unheld_final() || self.attachments.is_empty() {
            return None;
        }
        let waits = |stream: u64, number: u64| {
            self.attachments.iter().any(|a| a.stream == stream && a.sent < number)
        };
        let mut unheld = self.log.acknowledged() + 1..self.log.next();
        unheld.find_map(|number| {
            let logged = self.log.get(number)?;
            let is_final = matches!(&logged.what, EntryKind::Event { mark: Mark::FinalResponse(_), .. });
            (is_final && waits(logged.stream, number))
                .then(|| (logged.stream, logged.at().plus(self.limits.hold_ms)))
        })
    }

    pub(crate) fn withheld_deadlines(&mut self, context: &mut StepContext<'_>) {
        let now = context.now;
        let late = self.attachments.iter_mut().filter(|a| !a.open && a.head_by <= now);
        for attachment in late {
            attachment.open = true;
            write_head(context, attachment.sink);
        }
        while let Some((stream, _)) = self.withheld_response().filter(|(_, until)| *until <= now) {
            self.write_unlogged(context, stream, self.log.next() - 1);
        }
        let text = self.unacknowledged();
        self.refuse_gated(context, &text, |gated| gated.until <= now);
    }

    /// Writes what a stream's connection was not sent yet, up to and including an entry,
    /// without event ids.
    pub(crate) fn write_unlogged(
        &mut self,
        context: &mut StepContext<'_>,
        stream: u64,
        through: u64,
    ) {
        self.write_some_unlogged(context, stream, through, |_| true);
    }

    /// As [`Session::write_unlogged`], and leaves out the messages that are not `wanted`.
    fn write_some_unlogged(
        &mut self,
        context: &mut StepContext<'_>,
        stream: u64,
        through: u64,
        wanted: impl Fn(&Mark) -> bool,
    ) {
        let Some(attachment) = self.attachment(stream).filter(|a| a.sent < through) else { return };
        let (sink, sent) = (attachment.sink, attachment.sent);
        (attachment.sent, attachment.told_at) = (through, context.now);
        if !std::mem::replace(&mut attachment.open, true) {
            write_head(context, sink);
        }
        let mut closes = false;
        for number in (sent + 1).max(self.log.first())..=through {
            let Some(logged) = self.log.get(number).filter(|logged| logged.stream == stream) else {
                continue;
            };
            match &logged.what {
                EntryKind::Event { data, mark } if wanted(mark) => {
                    let data = self.without_promise(number, data);
                    let named = mutant!("name_what_is_not_held");
                    let id = named.then(|| self.log.owner_tags.id(stream, number));
                    let frame = Frame::Message { id, data };
                    context.effects.push(Effect::Write { sink, frame });
                }
                EntryKind::Closed => closes = true,
                _ => {}
            }
        }
        if closes {
            self.finish(context, sink, Ending::Proper);
        }
    }

    /// A message as a client may have it before the store has acknowledged anything: a
    /// result that acknowledges a change of the session is an error instead.
    fn without_promise(&self, number: u64, data: &Bytes) -> Bytes {
        if self.held_back.waits_for_record(number) {
            return undone(data.clone(), &self.unacknowledged());
        }
        data.clone()
    }

    /// Writes everything that waits for the store, because the session ends here: all but server
    /// requests. No answer to them is taken any more; and where the end is lost with this owner,
    /// the next one, which may run the call again, would not know that its client was asked.
    pub(crate) fn write_all_unlogged(&mut self, context: &mut StepContext<'_>) {
        let through = self.log.next() - 1;
        let unheld = !self.log.is_held() && !mutant!("end_without_the_final_responses");
        let streams: Vec<u64> = self.attachments.iter().map(|a| a.stream).collect();
        for stream in streams.into_iter().filter(|_| unheld) {
            let wanted = |mark: &Mark| !matches!(mark, Mark::ServerRequest(_));
            self.write_some_unlogged(context, stream, through, wanted);
        }
    }

    fn unacknowledged(&self) -> String {
        format!(
            "the session store did not acknowledge this within {} ms (sessions.hold_ms); try again",
            self.limits.hold_ms
        )
    }
}

/// Begins a response's body without an event id.
fn write_head(context: &mut StepContext<'_>, sink: crate::SinkId) {
    context.effects.push(Effect::Open { sink, welcome: false, at: None });
    context.effects.push(Effect::Write { sink, frame: Frame::KeepAlive });
}

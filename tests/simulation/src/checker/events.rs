//! The events that were sent, and which of them a client must have received.

use conversation::EventId;
use ownership::{Record, Token};
use protocol::SessionId;

use super::super::client::Client;
use super::Checker;

impl Checker {
    /// Records an event that the owner with this token writes to a connection: the log has it.
    pub(in super::super) fn sent(&mut self, session: &SessionId, by: Token, id: EventId) {
        let stream = self.sent.entry((session.clone(), id.stream)).or_default();
        stream.insert(id.number, id);
        let through = self.sent_by.entry((session.clone(), by.random)).or_default();
        *through = id.number.max(*through);
    }

    /// The number of the newest event of the session that was sent under a token of this record. In
    /// a partition of Redis, the claim of an owner may be missing in the record. Then the log does
    /// not contain the events of that owner either.
    pub(super) fn sent_through(&self, session: &SessionId, record: &Record) -> u64 {
        let tokens = std::iter::once(&record.owner.token).chain(&record.former);
        let sent = tokens.filter_map(|token| self.sent_by.get(&(session.clone(), token.random)));
        sent.copied().max().unwrap_or(0)
    }

    /// Another node has claimed the session with the log up to this number. Forgets the later
    /// events of its owners: their numbers are assigned again.
    pub(super) fn log_ends(&mut self, now: u64, session: &SessionId, through: u64) {
        let mut lost = None;
        for ((of, _), sent) in &mut self.sent_by {
            if of == session {
                *sent = through.min(*sent);
            }
        }
        for ((of, _), stream) in &mut self.sent {
            if of == session {
                lost = stream.split_off(&(through + 1)).into_values().next().or(lost);
            }
        }
        if let Some(lost) = lost {
            self.forgotten(now, session, &format!("a claim did not find event {lost} in the log"));
        }
    }

    /// The first event of a stream that has ended which its client did not receive.
    pub(super) fn missed(
        &self,
        client: &Client,
        session: &SessionId,
        last: EventId,
    ) -> Option<EventId> {
        let sent = self.sent.get(&(session.clone(), last.stream))?;
        let mut missed = sent.range(..=last.number).filter(|(_, id)| !client.has_seen(id));
        missed.next().map(|(_, id)| *id)
    }
}

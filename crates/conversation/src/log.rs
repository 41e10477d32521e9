//! The session's log: numbered entries, how many of them are acknowledged, and which can still be
//! replayed.
//!
//! Numbers have no hole. An entry is sent to a client only once the store holds it
//! ([`Log::acknowledge`]). So every event that a client has received can be replayed by any node
//! that reads the log.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::entry::{EntryKind, Mark};
use crate::owner_tags::OwnerTags;
use crate::resumable::StreamPosition;
use crate::sparse::Sparse;
use crate::{Effect, EventId, Limits, Millis, OwnerTag, entry};

/// The replayable tail of the log, as this owner holds it in memory.
pub(crate) struct Log {
    entries: Sparse<VecDeque<Logged>>,
    /// The number of the first of `entries`, or of the next entry if there is none.
    first: u64,
    /// The store holds every entry up to this number.
    acknowledged: u64,
    /// Every entry up to this number was returned to be appended.
    handed_out: u64,
    /// The number of the newest final response; 0 before there is one.
    newest_final: u64,
    /// The floor of the last append.
    floor_sent: u64,
    bytes: usize,
    owner_tags: OwnerTags,
}

/// One entry.
pub(crate) struct Logged {
    /// Its stream; 0 for a checkpoint, which belongs to no stream.
    pub(crate) stream: u64,
    pub(crate) what: EntryKind,
    /// How far a stream of the server was read when it was written.
    position: Option<Box<StreamPosition>>,
    at: Millis,
}

impl Log {
    pub(crate) fn new(owner_tag: OwnerTag) -> Self {
        Self {
            entries: Sparse::default(),
            first: 1,
            acknowledged: 0,
            handed_out: 0,
            newest_final: 0,
            floor_sent: 1,
            bytes: 0,
            owner_tags: OwnerTags::new(owner_tag),
        }
    }

    /// A restored log: the store holds every entry.
    pub(crate) fn restored(
        first: u64,
        entries: Vec<(u64, EntryKind, Option<Box<StreamPosition>>)>,
        owner_tags: OwnerTags,
        at: Millis,
    ) -> Self {
        let last = first + entries.len() as u64 - 1;
        Self {
            first,
            acknowledged: last,
            handed_out: last,
            newest_final: 0,
            floor_sent: first,
            bytes: entries.iter().map(|(_, what, position)| size(what, position.as_deref())).sum(),
            entries: if entries.is_empty() {
                Sparse::default()
            } else {
                let logged = |(stream, what, position)| Logged { stream, what, position, at };
                Sparse::new(entries.into_iter().map(logged).collect())
            },
            owner_tags,
        }
    }

    fn entries(&self) -> &VecDeque<Logged> {
        static NONE: VecDeque<Logged> = VecDeque::new();
        self.entries.get().unwrap_or(&NONE)
    }

    /// The owners of the entries.
    pub(crate) fn owner_tags(&self) -> &OwnerTags {
        &self.owner_tags
    }

    /// Another owner writes from now on.
    pub(crate) fn succeed(&mut self, owner_tag: OwnerTag) {
        let (next, floor) = (self.next(), self.first);
        self.owner_tags.succeed(owner_tag, next, floor);
    }

    /// The id of one entry of a stream.
    pub(crate) fn event_id(&self, stream: u64, number: u64) -> EventId {
        self.owner_tags.id(stream, number)
    }

    /// The number of the oldest entry that can be replayed.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The number of the next entry.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.entries().len() as u64
    }

    /// The number of the newest entry; the one below the first if there is none.
    pub(crate) fn newest(&self) -> u64 {
        self.next() - 1
    }

    /// How many entries can be replayed.
    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Is there a final response that is not held?
    pub(crate) fn has_unheld_final(&self) -> bool {
        self.newest_final > self.acknowledged
    }

    /// Is every entry held?
    pub(crate) fn is_held(&self) -> bool {
        self.acknowledged + 1 == self.next()
    }

    /// Writes an entry and returns its number. `stream` is its own number where it opens one.
    pub(crate) fn push(&mut self, stream: u64, what: EntryKind, at: Millis) -> u64 {
        let number = self.next();
        self.bytes += what.size();
        if matches!(&what, EntryKind::Event { mark: Mark::FinalResponse(_), .. }) {
            self.newest_final = number;
        }
        // Most streams with a listener never get another entry.
        let entries = self.entries.get_or_insert_with(|| VecDeque::with_capacity(1));
        entries.push_back(Logged { stream, what, position: None, at });
        number
    }

    /// Adds a position to the newest entry that has none and was not returned to be appended. Returns it
    /// if there is no such entry.
    pub(crate) fn add_position(&mut self, position: StreamPosition) -> Option<StreamPosition> {
        let from = self.handed_out.max(self.first - 1) + 1 - self.first;
        let entries = self.entries.get_mut().into_iter().flatten();
        let is_free = |logged: &&mut Logged| logged.position.is_none() && !logged.is_checkpoint();
        let Some(entry) = entries.skip(from as usize).filter(is_free).last() else {
            return Some(position);
        };
        self.bytes += position.bytes();
        entry.position = Some(Box::new(position));
        None
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Logged> {
        self.entries().get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// The store holds every entry up to `through`; returns the newly acknowledged numbers.
    pub(crate) fn acknowledge(&mut self, through: u64) -> std::ops::RangeInclusive<u64> {
        let through = through.min(self.handed_out);
        let skipped = u64::from(mutant!("skip_an_event") && through > self.acknowledged + 1);
        let newly = self.acknowledged + 1 + skipped..=through;
        self.acknowledged = self.acknowledged.max(through);
        newly
    }

    /// The acknowledged entries of one stream after `number`, oldest first.
    pub(crate) fn replay(
        &self,
        stream: u64,
        after: u64,
    ) -> impl Iterator<Item = (u64, &EntryKind)> {
        let from = (after + 1).max(self.first);
        (from..=self.acknowledged).filter_map(move |number| {
            let logged = self.get(number)?;
            (logged.stream == stream).then_some((number, &logged.what))
        })
    }

    /// Every entry from `from` on, encoded.
    pub(crate) fn encoded(&self, from: u64) -> Vec<Bytes> {
        (from..self.next())
            .filter_map(|number| self.get(number).map(|logged| (number, logged)))
            .map(|(number, logged)| {
                let by = self.owner_tags.of(number);
                let by = if mutant!("sign_all_entries") { self.owner_tags.current() } else { by };
                entry::encode(logged.stream, by, &logged.what, logged.position.as_deref())
            })
            .collect()
    }

    /// The entries that were not appended yet, as an effect.
    pub(crate) fn hand_out(&mut self) -> Option<Effect> {
        let next = self.next();
        let from = self.handed_out.max(self.first - 1) + 1;
        if from >= next && self.floor_sent == self.first {
            return None;
        }
        self.floor_sent = self.first;
        let entries = self.encoded(from);
        self.handed_out = next - 1;
        Some(Effect::Append { first: from, floor: self.first, entries })
    }

    /// Is the log over a limit, and would [`Log::floor`] free anything?
    pub(crate) fn is_full(&self, limits: &Limits, now: Millis) -> bool {
        // Called after every step, and most sessions have no log.
        if self.entries.get().is_none() {
            return false;
        }
        let over = self.entries().len() > events_max(limits)
            || self.bytes > limits.log_bytes_most()
            || self.settles_at(limits).is_some_and(|at| at <= now);
        over && self.entries().len() > self.kept_min()
    }

    /// When the oldest entry may be dropped because the log exceeds `log_bytes_max`. The entry
    /// stays until the store has acknowledged it, so that its stream does not lose it. It also
    /// stays until it is `hold_ms` old, so that a client whose connection broke can resume before
    /// it.
    fn settles_at(&self, limits: &Limits) -> Option<Millis> {
        let oldest = self.entries().front()?;
        let over = self.bytes > limits.log_bytes_max && self.first <= self.acknowledged;
        (over && self.entries().len() > self.kept_min()).then(|| oldest.at.plus(limits.hold_ms))
    }

    /// How many entries stay whatever their size: the newest that is no checkpoint, and the
    /// checkpoints after it.
    fn kept_min(&self) -> usize {
        let checkpoints = self.entries().iter().rev().take_while(|logged| logged.is_checkpoint());
        checkpoints.count() + 1
    }

    /// The new floor: above every expired entry, and at a limit so high that an eighth of it is
    /// free, a checkpoint included. Above `log_bytes_max` only entries that [`Log::settles_at`]
    /// allows are dropped; above [`Limits::log_bytes_most`] the oldest are dropped in any case.
    pub(crate) fn floor(&self, limits: &Limits, now: Millis) -> u64 {
        let age = limits.replay_secs.saturating_mul(1_000);
        let is_old = |(number, logged): &(u64, &Logged)| {
            *number <= self.acknowledged && logged.at.plus(age) <= now
        };
        let old = (self.first..).zip(self.entries()).take_while(is_old);
        let (mut gone, mut bytes) = (0, self.bytes);
        for (_, logged) in old {
            gone += 1;
            bytes -= logged.size();
        }
        let (events_max, bytes_max) = (events_max(limits), limits.log_bytes_max);
        let len = self.entries().len();
        let (over_events, over_bytes) = (len - gone >= events_max, bytes > bytes_max);
        if over_events || over_bytes {
            let most = len.saturating_sub(self.kept_min());
            let events_wanted = (events_max * 7 / 8).min(events_max - 1);
            let bytes_wanted = bytes_max / 8 * 7;
            // An eighth below the hard limit.
            let over_most = bytes > limits.log_bytes_most();
            let most_wanted = limits.log_bytes_most() - bytes_max / 8;
            while gone < most {
                let oldest = &self.entries()[gone];
                let is_settled = self.first + gone as u64 <= self.acknowledged
                    && oldest.at.plus(limits.hold_ms) <= now;
                let goes = (over_events && len - gone > events_wanted)
                    || (over_most && bytes > most_wanted)
                    || (over_bytes && bytes > bytes_wanted && is_settled);
                if !goes {
                    break;
                }
                bytes -= oldest.size();
                gone += 1;
            }
        }
        self.first + gone as u64
    }

    /// The bytes of the entries.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The floor above every entry that the store has acknowledged and that is `hold_ms` old: its
    /// client has received it, or had the time to resume.
    pub(crate) fn settled_floor(&self, limits: &Limits, now: Millis) -> u64 {
        let is_settled = |(number, logged): &(u64, &Logged)| {
            *number <= self.acknowledged && logged.at.plus(limits.hold_ms) <= now
        };
        let most = self.entries().len().saturating_sub(self.kept_min());
        let settled = (self.first..).zip(self.entries()).take(most).take_while(is_settled);
        self.first + settled.count() as u64
    }

    /// When every entry that could be dropped is `hold_ms` old, so that [`Self::settled_floor`] is above
    /// all of them; 0 if there is none.
    pub(crate) fn trimmable_at(&self, limits: &Limits) -> Millis {
        let most = self.entries().len().saturating_sub(self.kept_min());
        let newest = most.checked_sub(1).and_then(|index| self.entries().get(index));
        newest.map_or(Millis(0), |logged| logged.at.plus(limits.hold_ms))
    }

    /// Removes the oldest entry.
    pub(crate) fn take_oldest(&mut self) -> Option<Logged> {
        let entries = self.entries.get_mut()?;
        let oldest = entries.pop_front()?;
        self.bytes -= oldest.size();
        self.first += 1;
        if entries.is_empty() {
            // An idle session keeps no buffer.
            self.entries.clear();
        }
        Some(oldest)
    }

    /// Is there nothing but one checkpoint?
    pub(crate) fn is_lone_checkpoint(&self) -> bool {
        self.entries().len() == 1 && self.entries()[0].is_checkpoint()
    }

    /// When the oldest entry expires: an eighth later than necessary, so that several are dropped
    /// at once. An entry that the store does not hold never expires.
    pub(crate) fn expires_at(&self, limits: &Limits) -> Option<Millis> {
        let oldest = self.entries().front()?;
        let age = limits.replay_secs.saturating_mul(1_000);
        let expires =
            (self.first <= self.acknowledged).then(|| oldest.at.plus(age.saturating_add(age / 8)));
        expires.into_iter().chain(self.settles_at(limits)).min()
    }
}

/// The size of an entry for the limit in bytes.
fn size(what: &EntryKind, position: Option<&StreamPosition>) -> usize {
    what.size() + position.map_or(0, StreamPosition::bytes)
}

/// The minimum: an event and a checkpoint.
fn events_max(limits: &Limits) -> usize {
    limits.log_events_max.max(2)
}

impl Logged {
    /// When it was written.
    pub(crate) fn at(&self) -> Millis {
        self.at
    }

    fn size(&self) -> usize {
        size(&self.what, self.position.as_deref())
    }

    fn is_checkpoint(&self) -> bool {
        matches!(self.what, EntryKind::Checkpoint(_))
    }
}

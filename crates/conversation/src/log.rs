//! The session's log: numbered entries, how far they are held, and what of them can still be replayed.
//!
//! Numbers have no hole. An entry is shown to a client only once it is held
//! ([`Log::acknowledge`]), so what a client has seen can be replayed wherever the
//! log is read.

use std::collections::VecDeque;

use bytes::Bytes;
use protocol::RequestId;

use crate::{Effect, Emitter, Limits, Millis, entry};

/// The replayable tail of the log, as this owner holds it in memory.
pub(crate) struct Log {
    entries: VecDeque<Logged>,
    /// The number of the first of `entries`, or of the next one where there is none.
    first: u64,
    /// Everything up to this number is held.
    acknowledged: u64,
    /// Everything up to this number was handed out to be appended.
    handed_out: u64,
    /// The floor that the log was last told.
    floor_told: u64,
    bytes: usize,
}

/// One entry.
pub(crate) struct Logged {
    pub(crate) stream: u64,
    pub(crate) what: What,
    at: Millis,
}

/// What an entry says of its stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    /// It began. Its number is this entry's.
    Opened {
        /// The requests that it answers; none for a standalone stream.
        requests: Vec<RequestId>,
    },
    /// A message for the client.
    Event(Bytes),
    /// Nothing more will come on it.
    Closed,
}

/// An entry that went out of reach.
pub(crate) struct Trimmed {
    pub(crate) number: u64,
    pub(crate) stream: u64,
    /// The stream's last entry: nothing of it is left.
    pub(crate) closes: bool,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            first: 1,
            acknowledged: 0,
            handed_out: 0,
            floor_told: 1,
            bytes: 0,
        }
    }

    /// The number that the next entry will get.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// How many entries can be replayed.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Writes an entry and returns its number. `stream` is its own number where it opens one.
    pub(crate) fn push(&mut self, stream: u64, what: What, at: Millis) -> u64 {
        let number = self.next();
        self.bytes += what.size();
        self.entries.push_back(Logged { stream, what, at });
        number
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Logged> {
        self.entries.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Notes that everything up to `through` is held; returns the numbers that newly are.
    pub(crate) fn acknowledge(&mut self, through: u64) -> std::ops::RangeInclusive<u64> {
        let through = through.min(self.handed_out);
        let newly = self.acknowledged + 1..=through;
        self.acknowledged = self.acknowledged.max(through);
        newly
    }

    /// The entries of one stream after `number` that are held, oldest first.
    pub(crate) fn replay(&self, stream: u64, after: u64) -> impl Iterator<Item = (u64, &What)> {
        let from = (after + 1).max(self.first);
        (from..=self.acknowledged).filter_map(move |number| {
            let logged = self.get(number)?;
            (logged.stream == stream).then_some((number, &logged.what))
        })
    }

    /// What was not yet handed out, as the effect that hands it out.
    pub(crate) fn hand_out(&mut self, emitter: Emitter) -> Option<Effect> {
        let next = self.next();
        let from = self.handed_out.max(self.first - 1) + 1;
        if from >= next && self.floor_told == self.first {
            return None;
        }
        self.floor_told = self.first;
        let entries = (from..next)
            .filter_map(|number| self.get(number))
            .map(|logged| entry::encode(logged.stream, emitter, &logged.what))
            .collect();
        self.handed_out = next - 1;
        Some(Effect::Append { first: from, floor: self.first, entries })
    }

    /// Takes away the oldest entry if it is over a bound: too many, too large, or too old.
    ///
    /// The newest entry always stays, so that the message that broke the bound is
    /// itself not lost.
    pub(crate) fn trim_one(&mut self, limits: &Limits, now: Millis) -> Option<Trimmed> {
        let oldest = self.entries.front()?;
        let old = self.expires_at(limits).is_some_and(|expiry| expiry <= now);
        let large = self.entries.len() > 1
            && (self.entries.len() > limits.log_events_max || self.bytes > limits.log_bytes_max);
        if !old && !large {
            return None;
        }
        let trimmed = Trimmed {
            number: self.first,
            stream: oldest.stream,
            closes: oldest.what == What::Closed,
        };
        self.bytes -= oldest.what.size();
        self.entries.pop_front();
        self.first += 1;
        if self.entries.is_empty() {
            // An idle session keeps no buffer.
            self.entries = VecDeque::new();
        }
        Some(trimmed)
    }

    /// When the oldest entry is too old to be kept. One that is not held yet is never too old.
    pub(crate) fn expires_at(&self, limits: &Limits) -> Option<Millis> {
        let oldest = self.entries.front()?;
        (self.first <= self.acknowledged).then(|| oldest.at.plus(limits.replay_secs * 1_000))
    }
}

impl What {
    /// What the entry counts against the bound in bytes: its payload and about what surrounds it.
    fn size(&self) -> usize {
        64 + match self {
            Self::Event(data) => data.len(),
            Self::Opened { .. } | Self::Closed => 0,
        }
    }
}

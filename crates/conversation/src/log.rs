//! The session's log: numbered entries, how far they are held, and what of them can still be replayed.
//!
//! Numbers have no hole. An entry is shown to a client only once it is held
//! ([`Log::acknowledge`]), so what a client has seen can be replayed wherever the
//! log is read.

use std::collections::VecDeque;

use bytes::Bytes;
use protocol::RequestId;

use crate::checkpoint::Checkpoint;
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
    pub(crate) emitter: Emitter,
    pub(crate) what: What,
    at: Millis,
}

/// What an entry says of its stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    /// It began. Its number is this entry's.
    Opened {
        /// The requests that it answers; none for a standalone stream.
        requests: Vec<Asked>,
    },
    /// A message for the client.
    Event {
        /// The message.
        data: Bytes,
        /// What the message is besides.
        mark: Mark,
    },
    /// Nothing more will come on it.
    Closed,
    /// The client answered a question that was asked on it.
    Answered {
        /// The question's number.
        ask: u64,
    },
    /// What trimmed entries said; of no stream.
    Checkpoint(Box<Checkpoint>),
}

/// A request that a stream answers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) id: RequestId,
    /// The request on one line, where running it again does no harm.
    pub(crate) again: Option<Bytes>,
}

/// What a message is to whoever reads the log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mark {
    /// Nothing special.
    None,
    /// The last word on this request.
    Word(RequestId),
    /// The question of this number.
    Ask(u64),
}

/// An entry that went out of reach.
pub(crate) struct Trimmed {
    pub(crate) number: u64,
    pub(crate) stream: u64,
    /// The stream's last entry: nothing of it is left.
    pub(crate) closes: bool,
}

/// Everything that can be replayed, as it is written down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ring {
    /// The number of the first entry, or of the next one where there is none.
    pub first: u64,
    /// The entries, encoded.
    pub entries: Vec<Bytes>,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self::beginning_at(1)
    }

    fn beginning_at(first: u64) -> Self {
        Self {
            entries: VecDeque::new(),
            first,
            acknowledged: first - 1,
            handed_out: first - 1,
            floor_told: first,
            bytes: 0,
        }
    }

    /// What is held already, read back; all of it acknowledged. Nothing for a log that does
    /// not go on without a hole, or holds what is no entry.
    pub(crate) fn read(held: &[(u64, Bytes)], now: Millis) -> Option<Self> {
        let mut log = Self::beginning_at(held.first().map_or(1, |(number, _)| *number).max(1));
        for (number, entry) in held {
            let (stream, emitter, what) = entry::decode(entry)?;
            if *number != log.push(stream, emitter, what, now) {
                return None;
            }
        }
        log.acknowledged = log.next() - 1;
        log.handed_out = log.acknowledged;
        Some(log)
    }

    /// The number that the next entry will get.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// The number of the oldest entry that can be replayed.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// How many entries can be replayed.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Is everything held, the last floor included?
    pub(crate) fn is_held(&self) -> bool {
        self.acknowledged + 1 >= self.next() && self.floor_told == self.first
    }

    /// Writes an entry and returns its number. `stream` is its own number where it opens one.
    pub(crate) fn push(&mut self, stream: u64, emitter: Emitter, what: What, at: Millis) -> u64 {
        let number = self.next();
        self.bytes += what.size();
        self.entries.push_back(Logged { stream, emitter, what, at });
        number
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Logged> {
        self.entries.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Every entry with its number, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Logged)> {
        (self.first..).zip(&self.entries)
    }

    /// Notes that everything up to `through` is held; returns the numbers that newly are.
    pub(crate) fn acknowledge(&mut self, through: u64) -> std::ops::RangeInclusive<u64> {
        let through = through.min(self.handed_out);
        let newly = self.acknowledged + 1..=through;
        self.acknowledged = self.acknowledged.max(through);
        newly
    }

    /// The entries of one stream after `number` that are held, oldest first.
    pub(crate) fn replay(&self, stream: u64, after: u64) -> impl Iterator<Item = (u64, &Logged)> {
        let from = (after + 1).max(self.first);
        (from..=self.acknowledged).filter_map(move |number| {
            let logged = self.get(number)?;
            (logged.stream == stream).then_some((number, logged))
        })
    }

    /// What was not yet handed out, as the effect that hands it out.
    pub(crate) fn hand_out(&mut self) -> Option<Effect> {
        let next = self.next();
        let from = self.handed_out.max(self.first - 1) + 1;
        if from >= next && self.floor_told == self.first {
            return None;
        }
        self.floor_told = self.first;
        let entries = self.encoded(from);
        self.handed_out = next - 1;
        Some(Effect::Append { first: from, floor: self.first, entries })
    }

    /// Everything that can be replayed.
    pub(crate) fn ring(&self) -> Ring {
        Ring { first: self.first, entries: self.encoded(self.first) }
    }

    fn encoded(&self, from: u64) -> Vec<Bytes> {
        (from..self.next())
            .filter_map(|number| self.get(number))
            .map(|logged| entry::encode(logged.stream, logged.emitter, &logged.what))
            .collect()
    }

    /// The number that the log should begin at by its bounds, where it holds too much.
    ///
    /// An eighth is trimmed at once, so that what has to be said about it is said seldom.
    /// The newest entry always stays, so that the message that broke the bound is
    /// itself not lost.
    pub(crate) fn cut(&self, limits: &Limits, now: Millis) -> Option<u64> {
        let large = self.entries.len() > limits.log_events_max || self.bytes > limits.log_bytes_max;
        let old = self.expires_at(limits).is_some_and(|expiry| expiry <= now);
        if !large && !old {
            return None;
        }
        let (most, most_bytes) = if large {
            // A checkpoint must fit, too.
            let eighth = (limits.log_events_max / 8).max(1);
            (limits.log_events_max.saturating_sub(eighth), limits.log_bytes_max / 8 * 7)
        } else {
            (usize::MAX, usize::MAX)
        };
        let (mut left, mut bytes) = (self.entries.len(), self.bytes);
        let mut cut = self.first;
        for (number, logged) in self.iter() {
            let stale =
                number <= self.acknowledged && logged.at.plus(limits.replay_secs * 1_000) <= now;
            let over = left > 1 && (left > most || bytes > most_bytes);
            if !over && !stale {
                break;
            }
            left -= 1;
            bytes -= logged.what.size();
            cut = number + 1;
        }
        (cut > self.first).then_some(cut)
    }

    /// Takes away the oldest entry, if it lies before `cut`.
    pub(crate) fn trim_one(&mut self, cut: u64) -> Option<Trimmed> {
        if self.first >= cut {
            return None;
        }
        let oldest = self.entries.pop_front()?;
        let trimmed = Trimmed {
            number: self.first,
            stream: oldest.stream,
            closes: oldest.what == What::Closed,
        };
        self.bytes -= oldest.what.size();
        self.first += 1;
        if self.entries.is_empty() {
            // An idle session keeps no buffer.
            self.entries = VecDeque::new();
        }
        Some(trimmed)
    }

    /// When something in it is too old to be kept. An eighth of the time longer than it has
    /// to be, so that what gets old together goes together. What is not held yet is never
    /// too old; neither is a checkpoint, which is written anew when something goes.
    pub(crate) fn expires_at(&self, limits: &Limits) -> Option<Millis> {
        let (number, oldest) =
            self.iter().find(|(_, logged)| !matches!(logged.what, What::Checkpoint(_)))?;
        let kept = limits.replay_secs.saturating_mul(1_000);
        (number <= self.acknowledged).then(|| oldest.at.plus(kept + kept / 8))
    }
}

impl What {
    /// What the entry counts against the bound in bytes: its payload and about what surrounds it.
    fn size(&self) -> usize {
        64 + match self {
            Self::Event { data, .. } => data.len(),
            Self::Opened { requests } => {
                requests.iter().filter_map(|asked| asked.again.as_ref()).map(Bytes::len).sum()
            }
            Self::Closed | Self::Answered { .. } | Self::Checkpoint(_) => 0,
        }
    }
}

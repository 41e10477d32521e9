//! What the entries that are trimmed had said and is still needed, as one entry of its own.
//!
//! A quiet stream may be older than everything that can be replayed. Before the log drops
//! what opened it, a checkpoint says it again; so the log alone tells a new owner which
//! streams there are, whatever was trimmed.

use serde::{Deserialize, Serialize};

use crate::Emitter;
use crate::entry::{self, Request};
use crate::log::{Asked, What};
use crate::session::{Session, Turn};
use crate::stream::Owed;

/// Everything that must be known of what was trimmed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) streams: Vec<Known>,
    /// Streams of which nothing can be replayed any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) finished: Vec<Known>,
    /// Questions without an answer: stream, emitter, number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) asks: Vec<(u64, String, u64)>,
}

/// Entries are compared by how they are written down.
impl PartialEq for Checkpoint {
    fn eq(&self, other: &Self) -> bool {
        serde_json::to_string(self).ok() == serde_json::to_string(other).ok()
    }
}

/// One stream, as it stood.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) n: u64,
    /// Who opened it.
    e: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    r: Vec<Request>,
    /// The numbers of the last words, in the requests' order; 0 for none yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    w: Vec<u64>,
    pub(crate) last: u64,
    #[serde(default)]
    pub(crate) trimmed: u64,
    #[serde(default)]
    pub(crate) closed: bool,
    /// It has asked its client something.
    #[serde(default)]
    pub(crate) asked: bool,
}

impl Known {
    pub(crate) fn requests(&self) -> Vec<Owed> {
        let words = self.w.iter().copied().chain(std::iter::repeat(0));
        let owed = |(request, word): (&Request, u64)| {
            let Asked { id, again } = request.clone().into();
            Owed { id, again, word }
        };
        self.r.iter().zip(words).map(owed).collect()
    }

    pub(crate) fn opener(&self) -> Option<Emitter> {
        entry::emitter(&self.e)
    }

    fn of(number: u64, opener: Emitter, requests: &[Owed]) -> Self {
        let asked = |owed: &Owed| Asked { id: owed.id.clone(), again: owed.again.clone() };
        Self {
            n: number,
            e: opener.to_string(),
            r: requests.iter().map(|owed| Request::from(&asked(owed))).collect(),
            w: requests.iter().map(|owed| owed.word).collect(),
            last: 0,
            trimmed: 0,
            closed: false,
            asked: false,
        }
    }
}

impl Session {
    /// Writes a checkpoint, where anything of what was trimmed is still needed.
    pub(crate) fn check_point(&mut self, turn: &Turn<'_>) {
        let first = self.log.first();
        let asks: Vec<_> = self
            .asks
            .iter()
            .filter_map(|ask| Some((ask.stream?, ask.emitter.to_string(), ask.number)))
            .collect();
        let is_needed = !self.finished.is_empty()
            || self.streams.keys().any(|number| *number < first)
            || !asks.is_empty();
        if !is_needed {
            return;
        }
        let streams = self.streams.iter().map(|(number, stream)| Known {
            last: stream.last,
            trimmed: stream.trimmed,
            closed: stream.closed,
            asked: stream.asked,
            ..Known::of(*number, stream.opener, &stream.requests)
        });
        let finished = self.finished.iter().map(|stone| Known {
            last: stone.last,
            ..Known::of(stone.stream, stone.opener, &stone.requests)
        });
        let checkpoint =
            Checkpoint { streams: streams.collect(), finished: finished.collect(), asks };
        self.log.push(0, self.emitter, What::Checkpoint(Box::new(checkpoint)), turn.now);
    }
}

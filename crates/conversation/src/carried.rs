//! What a checkpoint carries over the floor, and how it is written down: the streams that
//! trimmed entries opened, the graves, the questions, and who emitted what.

use bytes::Bytes;
use protocol::RequestId;
use serde::{Deserialize, Serialize};
use thin_vec::ThinVec;

use crate::emitters::Emitters;
use crate::log::{AskId, Rerunnable};
use crate::stream::{Owed, Stream, Tombstone};
use crate::streams::Streams;
use crate::{Emitter, Millis, Unreadable};

/// A question that went out: its id, the stream it went on, and the entry that holds it.
pub(crate) type OpenAsk = (AskId, u64, u64);

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Carried {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    streams: Vec<CarriedStream>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    graves: Vec<Grave>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    asks: Vec<(String, u64, u64)>,
    emitters: Vec<(String, u64)>,
}

#[derive(Serialize, Deserialize)]
struct CarriedStream {
    n: u64,
    last: u64,
    trimmed: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    closed: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    asked: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    requests: Vec<CarriedOwed>,
}

#[derive(Serialize, Deserialize)]
struct CarriedOwed {
    id: RequestId,
    #[serde(default, skip_serializing_if = "is_zero")]
    word: u64,
    /// The request itself, where it may be run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    raw: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unsure: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    progress: Option<f64>,
}

#[derive(Serialize, Deserialize)]
struct Grave {
    n: u64,
    last: u64,
    requests: Vec<(RequestId, u64)>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Carried {
    pub(crate) fn add_stream(&mut self, n: u64, stream: &Stream) {
        self.streams.push(CarriedStream {
            n,
            last: stream.last,
            trimmed: stream.trimmed,
            closed: stream.closed,
            asked: stream.asked,
            requests: stream.requests.iter().map(CarriedOwed::of).collect(),
        });
    }

    /// How far the progress of a request of the stream added last has come.
    pub(crate) fn note_progress(&mut self, id: &RequestId, progress: f64) {
        let requests = self.streams.last_mut().into_iter().flat_map(|s| &mut s.requests);
        for owed in requests.filter(|owed| owed.id == *id && progress.is_finite()) {
            owed.progress = Some(progress);
        }
    }

    pub(crate) fn add_grave(&mut self, grave: &Tombstone) {
        let requests = grave.requests.iter().map(|owed| (owed.id.clone(), owed.word)).collect();
        self.graves.push(Grave { n: grave.stream, last: grave.last, requests });
    }

    pub(crate) fn add_ask(&mut self, (ask, stream, number): OpenAsk) {
        self.asks.push((ask.to_string(), stream, number));
    }

    /// Is there anything that would be forgotten?
    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.graves.is_empty() && self.asks.is_empty()
    }

    pub(crate) fn encode(mut self, emitters: &Emitters) -> Bytes {
        self.emitters = emitters.all().map(|(e, from)| (e.to_string(), from)).collect();
        // Writing numbers and strings to memory cannot fail.
        serde_json::to_vec(&self).unwrap_or_default().into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        serde_json::from_slice(bytes).map_err(|_| Unreadable::LOG)
    }

    pub(crate) fn emitters(&self) -> Option<Vec<(Emitter, u64)>> {
        self.emitters.iter().map(|(text, from)| Some((Emitter::parse(text)?, *from))).collect()
    }

    pub(crate) fn asks(&self) -> Option<Vec<OpenAsk>> {
        let read = |(text, stream, number): &(String, u64, u64)| {
            Some((AskId::parse(text)?, *stream, *number))
        };
        self.asks.iter().map(read).collect()
    }

    pub(crate) fn graves(&mut self, now: Millis) -> ThinVec<Tombstone> {
        std::mem::take(&mut self.graves)
            .into_iter()
            .map(|Grave { n, last, requests }| Tombstone {
                stream: n,
                last,
                requests: requests.into_iter().map(|(id, word)| Owed::new(id, word)).collect(),
                buried_at: now,
            })
            .collect()
    }

    pub(crate) fn streams(&mut self) -> Streams {
        std::mem::take(&mut self.streams)
            .into_iter()
            .map(|CarriedStream { n, last, trimmed, closed, asked, requests }| {
                let requests = requests.into_iter().map(CarriedOwed::owed).collect();
                (n, Stream { requests, call: None, last, trimmed, closed, asked })
            })
            .collect()
    }
}

impl CarriedOwed {
    fn of(owed: &Owed) -> Self {
        let text = |rerun: &Rerunnable| String::from_utf8(rerun.raw.to_vec()).ok();
        Self {
            id: owed.id.clone(),
            word: owed.word,
            raw: owed.rerun.as_ref().and_then(text),
            unsure: owed.rerun.as_ref().is_some_and(|rerun| !rerun.sure),
            progress: owed.progress,
        }
    }

    fn owed(self) -> Owed {
        let Self { id, word, raw, unsure, progress } = self;
        let rerun = raw.map(|raw| Rerunnable { raw: raw.into(), sure: !unsure });
        Owed { id, word, rerun, progress }
    }
}

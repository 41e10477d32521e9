//! What a checkpoint carries over the floor, and its encoding: the streams that trimmed entries
//! opened, the tombstones, the open server requests, and which owner wrote what.

use bytes::Bytes;
use protocol::RequestId;
use serde::{Deserialize, Serialize, Serializer};
use thin_vec::ThinVec;

use crate::entry::{Rerunnable, ServerRequestId};
use crate::owner_tags::OwnerTags;
use crate::stream::{Owed, Stream, Tombstone};
use crate::stream_table::StreamTable;
use crate::{Millis, OwnerTag, Unreadable};

/// About how long a tombstone is, in bytes.
const TOMBSTONE_BYTES: usize = 32;

/// A server request that was sent: its id, the stream it was sent on, and the entry that holds it.
pub(crate) type OpenServerRequest = (ServerRequestId, u64, u64);

/// A checkpoint that is to be encoded.
#[derive(Default, Serialize)]
pub(crate) struct Carrying<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    streams: Vec<CarriedStream>,
    /// Most of it, many times as long as all the rest: written from where they are.
    #[serde(rename = "graves", skip_serializing_if = "Tombstones::is_empty")]
    tombstones: Tombstones<'a>,
    #[serde(rename = "asks", skip_serializing_if = "Vec::is_empty")]
    server_requests: Vec<(String, u64, u64)>,
    owner_tags: Vec<(String, u64)>,
}

/// A checkpoint that was read.
#[derive(Default, Deserialize)]
pub(crate) struct Carried {
    #[serde(default)]
    streams: Vec<CarriedStream>,
    #[serde(default, rename = "graves")]
    tombstones: Vec<CarriedTombstone>,
    #[serde(default, rename = "asks")]
    server_requests: Vec<(String, u64, u64)>,
    owner_tags: Vec<(String, u64)>,
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
    /// The number of its final response in the log; 0 where there is none yet.
    #[serde(default, rename = "word", skip_serializing_if = "is_zero")]
    final_response: u64,
    /// The request itself, where it may be run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    raw: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unsure: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    progress: Option<f64>,
}

/// A stream, its last event, and each of its requests with its final response.
#[derive(Deserialize)]
struct CarriedTombstone(u64, u64, Vec<(RequestId, u64)>);

#[derive(Default)]
struct Tombstones<'a>(&'a [Tombstone]);

impl Tombstones<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> Serialize for Tombstones<'a> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let carried = |tombstone: &'a Tombstone| {
            (tombstone.stream, tombstone.last, FinalResponses(&tombstone.requests))
        };
        serializer.collect_seq(self.0.iter().map(carried))
    }
}

struct FinalResponses<'a>(&'a [Owed]);

impl Serialize for FinalResponses<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|owed| (&owed.id, owed.final_response)))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl<'a> Carrying<'a> {
    pub(crate) fn new(tombstones: &'a [Tombstone]) -> Self {
        Self { tombstones: Tombstones(tombstones), ..Self::default() }
    }

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

    pub(crate) fn add_server_request(
        &mut self,
        (server_request, stream, number): OpenServerRequest,
    ) {
        self.server_requests.push((server_request.to_string(), stream, number));
    }

    /// Is there anything that would be forgotten?
    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.tombstones.is_empty() && self.server_requests.is_empty()
    }

    pub(crate) fn encode(mut self, owner_tags: &OwnerTags) -> Bytes {
        self.owner_tags = owner_tags.all().map(|(e, from)| (e.to_string(), from)).collect();
        let mut text = Vec::with_capacity(64 + self.tombstones.0.len() * TOMBSTONE_BYTES);
        // Writing numbers and strings to memory cannot fail.
        let _ = serde_json::to_writer(&mut text, &self);
        text.into()
    }
}

impl Carried {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        serde_json::from_slice(bytes).map_err(|_| Unreadable::LOG)
    }

    pub(crate) fn owner_tags(&self) -> Option<Vec<(OwnerTag, u64)>> {
        self.owner_tags.iter().map(|(text, from)| Some((OwnerTag::parse(text)?, *from))).collect()
    }

    pub(crate) fn server_requests(&self) -> Option<Vec<OpenServerRequest>> {
        let read = |(text, stream, number): &(String, u64, u64)| {
            Some((ServerRequestId::parse(text)?, *stream, *number))
        };
        self.server_requests.iter().map(read).collect()
    }

    pub(crate) fn tombstones(&mut self, now: Millis) -> ThinVec<Tombstone> {
        std::mem::take(&mut self.tombstones)
            .into_iter()
            .map(|CarriedTombstone(n, last, requests)| Tombstone {
                stream: n,
                last,
                requests: requests
                    .into_iter()
                    .map(|(id, final_response)| Owed::new(id, final_response))
                    .collect(),
                ended_at: now,
            })
            .collect()
    }

    pub(crate) fn streams(&mut self) -> StreamTable {
        std::mem::take(&mut self.streams)
            .into_iter()
            .map(|CarriedStream { n, last, trimmed, closed, asked, requests }| {
                let requests = requests.into_iter().map(CarriedOwed::owed).collect();
                (n, Stream { requests, post: None, last, trimmed, closed, asked })
            })
            .collect()
    }
}

impl CarriedOwed {
    fn of(owed: &Owed) -> Self {
        let text = |rerun: &Rerunnable| String::from_utf8(rerun.raw.to_vec()).ok();
        Self {
            id: owed.id.clone(),
            final_response: owed.final_response,
            raw: owed.rerun.as_ref().and_then(text),
            unsure: owed.rerun.as_ref().is_some_and(|rerun| !rerun.sure),
            progress: owed.progress,
        }
    }

    fn owed(self) -> Owed {
        let Self { id, final_response, raw, unsure, progress } = self;
        let rerun = raw.map(|raw| Rerunnable { raw: raw.into(), sure: !unsure });
        Owed { id, final_response, rerun, progress }
    }
}

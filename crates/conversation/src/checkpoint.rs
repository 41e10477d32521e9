//! The content of a checkpoint and its encoding: the streams that trimmed entries opened, the
//! tombstones, the open server requests, and the owner of each entry.

use bytes::Bytes;
use protocol::{Position, RequestId};
use serde::{Deserialize, Serialize, Serializer};
use thin_vec::ThinVec;

use crate::entry::{Rerunnable, ServerRequestId, read_trace};
use crate::owner_tags::OwnerTags;
use crate::resumable::Resumable;
use crate::stream::{Stream, StreamRequest, Tombstone};
use crate::stream_table::StreamTable;
use crate::{Millis, OwnerTag, Unreadable};

/// Approximate length of a tombstone, in bytes.
const TOMBSTONE_BYTES: usize = 32;

/// A server request that was sent: its id, the stream it was sent on, and the entry that holds it.
pub(crate) type OpenServerRequest = (ServerRequestId, u64, u64);

/// A checkpoint that is to be encoded.
#[derive(Default, Serialize)]
pub(crate) struct CheckpointBuilder<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    streams: Vec<CheckpointStream>,
    /// The largest part by far, so it is encoded without a copy.
    #[serde(rename = "graves", skip_serializing_if = "EncodedTombstones::is_empty")]
    tombstones: EncodedTombstones<'a>,
    #[serde(rename = "asks", skip_serializing_if = "Vec::is_empty")]
    server_requests: Vec<(String, u64, u64)>,
    /// How far the server's streams that belong to no request were read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    positions: Vec<Position>,
    owner_tags: Vec<(String, u64)>,
    /// The same, under the name that the first programs read. To be removed when none of them
    /// runs.
    emitters: Vec<(String, u64)>,
}

/// A decoded checkpoint.
#[derive(Default, Deserialize)]
pub(crate) struct Checkpoint {
    #[serde(default)]
    streams: Vec<CheckpointStream>,
    #[serde(default, rename = "graves")]
    tombstones: Vec<CheckpointTombstone>,
    #[serde(default, rename = "asks")]
    server_requests: Vec<(String, u64, u64)>,
    #[serde(default)]
    positions: Vec<Position>,
    owner_tags: Option<Vec<(String, u64)>>,
    /// The same, as only the first programs wrote it.
    emitters: Option<Vec<(String, u64)>>,
}

#[derive(Serialize, Deserialize)]
struct CheckpointStream {
    n: u64,
    last: u64,
    trimmed: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    closed: bool,
    #[serde(default, rename = "asked", skip_serializing_if = "std::ops::Not::not")]
    sent_server_request: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    requests: Vec<CheckpointRequest>,
}

#[derive(Serialize, Deserialize)]
struct CheckpointRequest {
    id: RequestId,
    /// The number of its final response in the log; 0 if there is none yet.
    #[serde(default, rename = "word", skip_serializing_if = "is_zero")]
    final_response: u64,
    /// The request itself, if it may be run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    raw: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unsure: bool,
    /// Its trace. An earlier version ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    progress: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resumable: Option<Box<Resumable>>,
}

/// A stream, its last event, and each of its requests with its final response.
#[derive(Deserialize)]
struct CheckpointTombstone(u64, u64, Vec<(RequestId, u64)>);

#[derive(Default)]
struct EncodedTombstones<'a>(&'a [Tombstone]);

impl EncodedTombstones<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> Serialize for EncodedTombstones<'a> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let carried = |tombstone: &'a Tombstone| {
            (tombstone.stream, tombstone.last, FinalResponses(&tombstone.requests))
        };
        serializer.collect_seq(self.0.iter().map(carried))
    }
}

struct FinalResponses<'a>(&'a [StreamRequest]);

impl Serialize for FinalResponses<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|request| (&request.id, request.final_response)))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl<'a> CheckpointBuilder<'a> {
    pub(crate) fn new(tombstones: &'a [Tombstone]) -> Self {
        Self { tombstones: EncodedTombstones(tombstones), ..Self::default() }
    }

    pub(crate) fn add_stream(&mut self, n: u64, stream: &Stream) {
        self.streams.push(CheckpointStream {
            n,
            last: stream.last,
            trimmed: stream.trimmed,
            closed: stream.closed,
            sent_server_request: stream.sent_server_request,
            requests: stream.requests.iter().map(CheckpointRequest::of).collect(),
        });
    }

    /// Adds the newest progress of a request of the last added stream.
    pub(crate) fn note_progress(&mut self, id: &RequestId, progress: f64) {
        let requests = self.streams.last_mut().into_iter().flat_map(|s| &mut s.requests);
        for request in requests.filter(|request| request.id == *id && progress.is_finite()) {
            request.progress = Some(progress);
        }
    }

    pub(crate) fn add_server_request(
        &mut self,
        (server_request, stream, number): OpenServerRequest,
    ) {
        self.server_requests.push((server_request.to_string(), stream, number));
    }

    pub(crate) fn add_positions(&mut self, positions: impl Iterator<Item = Position>) {
        self.positions.extend(positions);
    }

    /// Is the checkpoint empty, so that it need not be written?
    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty()
            && self.tombstones.is_empty()
            && self.server_requests.is_empty()
            && self.positions.is_empty()
    }

    pub(crate) fn encode(mut self, owner_tags: &OwnerTags) -> Bytes {
        self.owner_tags = owner_tags.all().map(|(e, from)| (e.to_string(), from)).collect();
        self.emitters = self.owner_tags.clone();
        let mut text = Vec::with_capacity(64 + self.tombstones.0.len() * TOMBSTONE_BYTES);
        // Writing numbers and strings to memory cannot fail.
        let _ = serde_json::to_writer(&mut text, &self);
        text.into()
    }
}

impl Checkpoint {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let carried: Self = serde_json::from_slice(bytes).map_err(|_| Unreadable::LOG)?;
        let has_owner_tags = carried.owner_tags.is_some() || carried.emitters.is_some();
        if has_owner_tags { Ok(carried) } else { Err(Unreadable::LOG) }
    }

    pub(crate) fn owner_tags(&self) -> Option<Vec<(OwnerTag, u64)>> {
        let owner_tags = self.owner_tags.as_ref().or(self.emitters.as_ref());
        let owner_tags = owner_tags.into_iter().flatten();
        owner_tags.map(|(text, from)| Some((OwnerTag::parse(text)?, *from))).collect()
    }

    pub(crate) fn server_requests(&self) -> Option<Vec<OpenServerRequest>> {
        let read = |(text, stream, number): &(String, u64, u64)| {
            Some((ServerRequestId::parse(text)?, *stream, *number))
        };
        self.server_requests.iter().map(read).collect()
    }

    pub(crate) fn take_positions(&mut self) -> Vec<Position> {
        std::mem::take(&mut self.positions)
    }

    pub(crate) fn tombstones(&mut self, now: Millis) -> ThinVec<Tombstone> {
        std::mem::take(&mut self.tombstones)
            .into_iter()
            .map(|CheckpointTombstone(n, last, requests)| Tombstone {
                stream: n,
                last,
                requests: requests
                    .into_iter()
                    .map(|(id, final_response)| StreamRequest::new(id, final_response))
                    .collect(),
                ended_at: now,
            })
            .collect()
    }

    pub(crate) fn streams(&mut self) -> StreamTable {
        std::mem::take(&mut self.streams)
            .into_iter()
            .map(|CheckpointStream { n, last, trimmed, closed, sent_server_request, requests }| {
                let requests = requests.into_iter().map(CheckpointRequest::into_request).collect();
                (n, Stream { requests, post: None, last, trimmed, closed, sent_server_request })
            })
            .collect()
    }
}

impl CheckpointRequest {
    fn of(request: &StreamRequest) -> Self {
        let text = |rerun: &Rerunnable| String::from_utf8(rerun.raw.to_vec()).ok();
        Self {
            id: request.id.clone(),
            final_response: request.final_response,
            raw: request.rerun.as_ref().and_then(text),
            unsure: request.rerun.as_ref().is_some_and(|rerun| !rerun.sure),
            trace: request.rerun.as_ref().and_then(Rerunnable::trace_text),
            progress: request.progress,
            resumable: request.resumable.clone(),
        }
    }

    fn into_request(self) -> StreamRequest {
        let Self { id, final_response, raw, unsure, trace, progress, resumable } = self;
        let trace = read_trace(trace.as_deref());
        let rerun = raw.map(|raw| Rerunnable { raw: raw.into(), sure: !unsure, trace });
        StreamRequest { id, final_response, rerun, progress, resumable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_of_the_first_programs_is_read_and_one_is_written_that_they_read() {
        let tag = |checkpoint: &Checkpoint| checkpoint.owner_tags().unwrap();
        let first = Checkpoint::decode(br#"{"emitters":[["00c0ffee00c0ffee",3]]}"#).unwrap();
        let owner_tag = OwnerTag(0x00c0_ffee_00c0_ffee);
        assert_eq!(tag(&first), [(owner_tag, 3)]);
        let written = CheckpointBuilder::new(&[]).encode(&OwnerTags::new(owner_tag));
        assert_eq!(tag(&Checkpoint::decode(&written).unwrap()), [(owner_tag, 1)]);
        let written: serde_json::Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(written["emitters"], written["owner_tags"]);
        assert_eq!(Checkpoint::decode(b"{}").err(), Some(Unreadable::LOG));
    }
}

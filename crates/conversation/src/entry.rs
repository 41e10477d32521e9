//! An entry of the log and its encoding: one line of JSON that names its kind, then the payload
//! unchanged.
//!
//! The meaning of a kind never changes; a new meaning gets a kind of its own. So a version that
//! cannot read an entry detects that.

use bytes::{BufMut, Bytes, BytesMut};
use protocol::{Message, Request, RequestId, TraceContext};
use serde::{Deserialize, Serialize};

use crate::event_id::decimal;
use crate::resumable::{Resumable, StreamPosition};
use crate::{OwnerTag, Unreadable};

/// The content of an entry of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum EntryKind {
    /// The stream was opened. Its number is this entry's.
    Opened {
        /// The requests that it answers; empty for a standalone stream.
        requests: Vec<NewStreamRequest>,
    },
    /// A message for the client.
    Event {
        /// The message.
        data: Bytes,
        /// The meaning of the message for the session.
        mark: Mark,
    },
    /// A request that the stream answers needs no answer any more.
    Cancelled {
        /// The request.
        request: RequestId,
    },
    /// A server request that was sent on the stream is no longer open.
    Answered {
        /// The server request.
        server_request: ServerRequestId,
    },
    /// No further message is written to the stream.
    Closed,
    /// What must outlive the entries below the floor, encoded by `checkpoint`.
    Checkpoint(Bytes),
}

/// The meaning of a message for the session.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mark {
    /// None.
    Plain,
    /// It is the final response to this request.
    FinalResponse(RequestId),
    /// It is a server request to the client.
    ServerRequest(ServerRequestId),
}

/// A request that a stream is opened for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NewStreamRequest {
    pub(crate) id: RequestId,
    pub(crate) rerun: Option<Rerunnable>,
    /// Set if the next owner might wait for its response at the same server.
    pub(crate) resumable: Option<Box<Resumable>>,
}

/// A request that another owner may run again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rerunnable {
    /// The request.
    pub(crate) raw: Bytes,
    /// Does running it twice do no harm? Otherwise that has to be determined first.
    pub(crate) sure: bool,
    /// The trace that goes on with it.
    pub(crate) trace: Option<Box<TraceContext>>,
}

impl Rerunnable {
    /// The request, at the origin of its trace: the owner that received it may be lost with its span.
    pub(crate) fn request(&self) -> Option<Request> {
        let mut request = read_request(&self.raw)?;
        request.trace = self.trace.as_ref().map(|trace| Box::new(trace.at_origin()));
        Some(request)
    }

    /// The trace, as it is written.
    pub(crate) fn trace_text(&self) -> Option<String> {
        self.trace.as_ref().map(|trace| trace.origin_text())
    }
}

/// The request that was kept to be run again.
pub(crate) fn read_request(raw: &Bytes) -> Option<Request> {
    match Message::parse(raw.clone()) {
        Ok(Message::Request(request)) => Some(request),
        _ => None,
    }
}

/// A trace as it was written. One that cannot be read is none.
pub(crate) fn read_trace(text: Option<&str>) -> Option<Box<TraceContext>> {
    TraceContext::of_origin_text(text?).map(Box::new)
}

/// The id of a server request: the owner that sent it, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerRequestId {
    pub(crate) owner_tag: OwnerTag,
    pub(crate) number: u64,
}

impl EntryKind {
    /// The size of the entry for the limit in bytes: its payload and an estimate of the rest.
    pub(crate) fn size(&self) -> usize {
        64 + match self {
            Self::Event { data, .. } => data.len(),
            Self::Opened { requests } => {
                let raw = |o: &NewStreamRequest| o.rerun.as_ref().map_or(0, |r| r.raw.len());
                let position = |o: &NewStreamRequest| o.resumable.as_ref().map_or(0, |r| r.bytes());
                requests.iter().map(|o| raw(o) + position(o)).sum()
            }
            // Bounded by its content; it must never displace the events.
            Self::Checkpoint(_) => 0,
            Self::Cancelled { .. } | Self::Answered { .. } | Self::Closed => 0,
        }
    }

    /// Is it sent to the client?
    pub(crate) fn is_sent_to_client(&self) -> bool {
        matches!(self, Self::Opened { .. } | Self::Event { .. })
    }
}

impl ServerRequestId {
    /// Reads an id; `None` for any text that [`std::fmt::Display`] does not write.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (owner_tag, number) = text.split_once('-')?;
        Some(Self { owner_tag: OwnerTag::parse(owner_tag)?, number: decimal(number)? })
    }
}

impl std::fmt::Display for ServerRequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.owner_tag, self.number)
    }
}

/// The first line, decoded.
#[derive(Deserialize)]
struct Head {
    /// The kind.
    k: String,
    /// The stream's number.
    s: u64,
    /// The owner that wrote it, in hexadecimal: JSON numbers end at 53 bits.
    e: String,
    /// The requests of an `opened`.
    #[serde(default)]
    r: Option<Vec<OpenedRequest>>,
    /// The request that an `event` answers, or that a `cancelled` names.
    #[serde(default)]
    w: Option<RequestId>,
    /// The server request that an `event` contains, or that an `answered` closes.
    #[serde(default)]
    a: Option<String>,
    /// How far a stream of the server was read when the entry was written. An earlier version ignores it.
    #[serde(default)]
    p: Option<Box<StreamPosition>>,
}

/// A request that a stream answers.
#[derive(Serialize, Deserialize)]
struct OpenedRequest {
    i: RequestId,
    /// The length of the request in the payload, in bytes; it may be run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    l: Option<usize>,
    /// It has to be determined whether it may be run again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    u: bool,
    /// Its trace. An earlier version ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    t: Option<String>,
    /// How the next owner may wait for its response. An earlier version ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    c: Option<Box<Resumable>>,
}

/// Encodes an entry. Written by hand, since this is done for every event. Only ids in the first
/// line need escaping, and their own encoding does that.
pub(crate) fn encode(
    stream: u64,
    owner_tag: OwnerTag,
    what: &EntryKind,
    position: Option<&StreamPosition>,
) -> Bytes {
    let payload = payload(what);
    let size = payload.clone().map(Bytes::len).sum::<usize>();
    // Most streams with a listener have a single entry, the one that opened them. Such an entry
    // allocates exactly its size.
    let is_short = matches!(what, EntryKind::Opened { requests } if requests.is_empty());
    let mut entry = BytesMut::with_capacity(if is_short { 64 } else { 96 + size });
    entry.put_slice(b"{\"k\":\"");
    entry.put_slice(kind(what).as_bytes());
    entry.put_slice(b"\",\"s\":");
    put_decimal(&mut entry, stream);
    entry.put_slice(b",\"e\":\"");
    entry.put_slice(&hexadecimal(owner_tag.0));
    entry.put_u8(b'"');
    match what {
        EntryKind::Opened { requests } => {
            let requests: Vec<OpenedRequest> = requests.iter().map(OpenedRequest::of).collect();
            // Writing numbers and strings to memory cannot fail.
            put_member(&mut entry, "r", &serde_json::to_vec(&requests).unwrap_or_default());
        }
        EntryKind::Event { mark: Mark::FinalResponse(id), .. }
        | EntryKind::Cancelled { request: id } => {
            put_member(&mut entry, "w", id.to_json().as_bytes());
        }
        EntryKind::Event { mark: Mark::ServerRequest(server_request), .. }
        | EntryKind::Answered { server_request } => {
            put_member(&mut entry, "a", format!("\"{server_request}\"").as_bytes());
        }
        EntryKind::Event { mark: Mark::Plain, .. }
        | EntryKind::Closed
        | EntryKind::Checkpoint(_) => {}
    }
    if let Some(position) = position {
        put_member(&mut entry, "p", &serde_json::to_vec(position).unwrap_or_default());
    }
    entry.put_slice(b"}\n");
    payload.for_each(|part| entry.put_slice(part));
    entry.freeze()
}

fn kind(what: &EntryKind) -> &'static str {
    match what {
        EntryKind::Opened { .. } => "opened",
        EntryKind::Event { .. } => "event",
        EntryKind::Cancelled { .. } => "cancelled",
        EntryKind::Answered { .. } => "answered",
        EntryKind::Closed => "closed",
        EntryKind::Checkpoint(_) => "checkpoint",
    }
}

/// The payload after the first line, in pieces.
fn payload(what: &EntryKind) -> impl Iterator<Item = &Bytes> + Clone {
    let (requests, only) = match what {
        EntryKind::Opened { requests } => (requests.as_slice(), None),
        EntryKind::Event { data, .. } => (&[][..], Some(data)),
        EntryKind::Checkpoint(carried) => (&[][..], Some(carried)),
        EntryKind::Cancelled { .. } | EntryKind::Answered { .. } | EntryKind::Closed => {
            (&[][..], None)
        }
    };
    requests.iter().filter_map(|new_request| new_request.rerun.as_ref().map(|r| &r.raw)).chain(only)
}

fn put_member(entry: &mut BytesMut, name: &str, value: &[u8]) {
    entry.put_slice(b",\"");
    entry.put_slice(name.as_bytes());
    entry.put_slice(b"\":");
    entry.put_slice(value);
}

fn put_decimal(entry: &mut BytesMut, mut number: u64) {
    // As many digits as 2^64 has.
    let mut digits = [0; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    entry.put_slice(&digits[first..]);
}

fn hexadecimal(number: u64) -> [u8; 16] {
    std::array::from_fn(|place| b"0123456789abcdef"[(number >> (60 - 4 * place)) as usize & 0xF])
}

/// A decoded entry: its stream, the owner that wrote it, its content, and how far a stream of the server
/// was read.
pub(crate) type Decoded = (u64, OwnerTag, EntryKind, Option<Box<StreamPosition>>);

/// Decodes an entry.
pub(crate) fn decode(entry: &Bytes) -> Result<Decoded, Unreadable> {
    let (head, payload) = split(entry).ok_or(Unreadable::LOG)?;
    if !KINDS.contains(&head.k.as_str()) {
        return Err(Unreadable::NEWER_LOG);
    }
    read(head, payload).ok_or(Unreadable::LOG)
}

/// Every kind that this version knows.
const KINDS: [&str; 6] = ["opened", "event", "cancelled", "answered", "closed", "checkpoint"];

fn split(entry: &Bytes) -> Option<(Head, Bytes)> {
    let split = entry.iter().position(|byte| *byte == b'\n')?;
    let head = serde_json::from_slice(&entry[..split]).ok()?;
    Some((head, entry.slice(split + 1..)))
}

fn read(head: Head, payload: Bytes) -> Option<Decoded> {
    let server_request = |server_request: Option<String>| ServerRequestId::parse(&server_request?);
    let bare = payload.is_empty();
    let what = match (head.k.as_str(), head.w, head.a) {
        ("opened", None, None) => EntryKind::Opened { requests: new_requests(head.r?, payload)? },
        ("event", None, None) => EntryKind::Event { data: payload, mark: Mark::Plain },
        ("event", Some(id), None) => {
            EntryKind::Event { data: payload, mark: Mark::FinalResponse(id) }
        }
        ("event", None, server_requests) => EntryKind::Event {
            data: payload,
            mark: Mark::ServerRequest(server_request(server_requests)?),
        },
        ("cancelled", Some(request), None) if bare => EntryKind::Cancelled { request },
        ("answered", None, requests) if bare => {
            EntryKind::Answered { server_request: server_request(requests)? }
        }
        ("closed", None, None) if bare => EntryKind::Closed,
        ("checkpoint", None, None) => EntryKind::Checkpoint(payload),
        _ => return None,
    };
    Some((head.s, OwnerTag::parse(&head.e)?, what, head.p))
}

/// Splits the payload of an `opened` into its requests.
fn new_requests(requests: Vec<OpenedRequest>, mut payload: Bytes) -> Option<Vec<NewStreamRequest>> {
    let mut new_requests = Vec::with_capacity(requests.len());
    for OpenedRequest { i, l, u, t, c } in requests {
        let rerun = match l {
            Some(length) if length <= payload.len() => {
                let (raw, trace) = (payload.split_to(length), read_trace(t.as_deref()));
                Some(Rerunnable { raw, sure: !u, trace })
            }
            Some(_) => return None,
            None => None,
        };
        new_requests.push(NewStreamRequest { id: i, rerun, resumable: c });
    }
    payload.is_empty().then_some(new_requests)
}

impl OpenedRequest {
    fn of(new_request: &NewStreamRequest) -> Self {
        let rerun = new_request.rerun.as_ref();
        Self {
            i: new_request.id.clone(),
            l: rerun.map(|rerun| rerun.raw.len()),
            u: rerun.is_some_and(|rerun| !rerun.sure),
            t: rerun.and_then(Rerunnable::trace_text),
            c: new_request.resumable.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::Position;

    use super::*;

    #[test]
    fn a_kind_of_a_newer_version_is_sent_to_client_from_a_corrupt_entry() {
        let read = |entry: &'static [u8]| decode(&Bytes::from_static(entry)).err();
        let newer = br#"{"k":"moved","s":1,"e":"0000000000000007"}"#;
        let newer: &'static [u8] = [&newer[..], b"\n"].concat().leak();
        assert_eq!(read(newer), Some(Unreadable::NEWER_LOG));
        let bare = br#"{"k":"opened","s":1,"e":"0000000000000007"}"#;
        let bare: &'static [u8] = [&bare[..], b"\n"].concat().leak();
        for corrupt in [&b""[..], b"no line", b"{\n", bare] {
            assert_eq!(read(corrupt), Some(Unreadable::LOG), "{corrupt:?}");
        }
    }

    fn all() -> Vec<EntryKind> {
        let data = Bytes::from_static(b"{\"jsonrpc\":\"2.0\"}");
        let server_request = ServerRequestId { owner_tag: OwnerTag(7), number: 9 };
        let rerun = |sure| {
            let trace = TraceContext { trace: 7, span: 8, origin: 8 };
            let trace = Some(Box::new(trace)).filter(|_| sure);
            Some(Rerunnable { raw: Bytes::from_static(b"{\"id\":\n 7}"), sure, trace })
        };
        let resumable = || serde_json::from_str(r#"{"m":"tools/call","g":7,"p":{"a":"e1"}}"#).ok();
        let new_requests = vec![
            NewStreamRequest { id: RequestId::from(7), rerun: rerun(true), resumable: resumable() },
            NewStreamRequest { id: RequestId::from("seven"), rerun: None, resumable: resumable() },
            NewStreamRequest { id: RequestId::from("eight"), rerun: rerun(false), resumable: None },
        ];
        vec![
            EntryKind::Opened { requests: new_requests },
            EntryKind::Opened { requests: vec![] },
            EntryKind::Event { data: data.clone(), mark: Mark::Plain },
            EntryKind::Event {
                data: data.clone(),
                mark: Mark::FinalResponse(RequestId::from("w")),
            },
            EntryKind::Event { data: data.clone(), mark: Mark::ServerRequest(server_request) },
            EntryKind::Cancelled { request: RequestId::from(3) },
            EntryKind::Answered { server_request },
            EntryKind::Checkpoint(data),
            EntryKind::Closed,
        ]
    }

    #[test]
    fn an_entry_reads_back_as_it_was_written() {
        for what in all() {
            let owner_tag = OwnerTag(u64::MAX - 1);
            let position = Position { stream: "s".into(), at: "e \"1\"".into() };
            let position = StreamPosition { about: Some(RequestId::from(7)), position };
            let encoded = encode(3, owner_tag, &what, Some(&position));
            let read = (3, owner_tag, what.clone(), Some(Box::new(position)));
            assert_eq!(decode(&encoded), Ok(read));
            assert_eq!(decode(&encode(3, owner_tag, &what, None)), Ok((3, owner_tag, what, None)));
        }
    }

    #[test]
    fn the_first_line_is_json_that_names_stream_and_owner_tag() {
        let closed =
            |stream, owner_tag| encode(stream, OwnerTag(owner_tag), &EntryKind::Closed, None);
        assert_eq!(&closed(0, 10)[..], b"{\"k\":\"closed\",\"s\":0,\"e\":\"000000000000000a\"}\n");
        let most = b"{\"k\":\"closed\",\"s\":18446744073709551615,\"e\":\"ffffffffffffffff\"}\n";
        assert_eq!(&closed(u64::MAX, u64::MAX)[..], most);
        let response = RequestId::from("say \"so\"\n");
        let data = Bytes::from_static(b"{}");
        let event = EntryKind::Event { data, mark: Mark::FinalResponse(response) };
        let entry = encode(1, OwnerTag(1), &event, None);
        assert!(entry.ends_with(b",\"w\":\"say \\\"so\\\"\\n\"}\n{}"), "{entry:?}");
    }

    #[test]
    fn an_entry_cut_short_or_of_another_kind_is_unreadable() {
        for what in all().into_iter().filter(|what| !matches!(what, EntryKind::Event { .. })) {
            let entry = encode(3, OwnerTag(1), &what, None);
            for length in 0..entry.len() {
                let cut = decode(&entry.slice(..length));
                assert!(
                    cut.is_err() || matches!(what, EntryKind::Checkpoint(_)),
                    "{what:?} cut to {length}"
                );
            }
        }
        for text in ["", "\n", "{}\n", r#"{"k":"new","s":1,"e":"0000000000000001"}"#] {
            assert!(decode(&Bytes::from_static(text.as_bytes())).is_err(), "{text}");
        }
    }
}

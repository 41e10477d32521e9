//! How a log entry is written down: one line of JSON that says what it is, then the payload as it
//! came.
//!
//! A kind never changes its meaning; what means something new gets a kind of its own. So
//! a version that cannot read an entry knows that it cannot.

use bytes::{BufMut, Bytes, BytesMut};
use protocol::RequestId;
use serde::{Deserialize, Serialize};

use crate::log::{Mark, Opening, Rerunnable, ServerRequestId, What};
use crate::{OwnerTag, Unreadable};

/// The first line, as it is read.
#[derive(Deserialize)]
struct Head {
    /// The kind.
    k: String,
    /// The stream's number.
    s: u64,
    /// The owner that wrote it, in hexadecimal: JSON numbers end at 53 bits.
    e: String,
    /// What an `opened` answers.
    #[serde(default)]
    r: Option<Vec<Asked>>,
    /// Whose final response an `event` is; whom a `cancelled` is about.
    #[serde(default)]
    w: Option<RequestId>,
    /// What an `event` asks the client, or an `answered` settles.
    #[serde(default)]
    a: Option<String>,
}

/// A request that a stream answers.
#[derive(Serialize, Deserialize)]
struct Asked {
    i: RequestId,
    /// How many bytes of the payload are the request itself; it may be run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    l: Option<usize>,
    /// Whether it may is still to be found out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    u: bool,
}

/// Writes an entry down. By hand, since this is done for every event; nothing in the first
/// line but ids needs escaping, and those write themselves.
pub(crate) fn encode(stream: u64, owner_tag: OwnerTag, what: &What) -> Bytes {
    let payload = payload(what);
    let size = payload.clone().map(Bytes::len).sum::<usize>();
    // The streams of a node that are listened to have an entry each that opened them, and
    // hardly another: such a one takes no more than it needs.
    let is_short = matches!(what, What::Opened { requests } if requests.is_empty());
    let mut entry = BytesMut::with_capacity(if is_short { 64 } else { 96 + size });
    entry.put_slice(b"{\"k\":\"");
    entry.put_slice(kind(what).as_bytes());
    entry.put_slice(b"\",\"s\":");
    put_decimal(&mut entry, stream);
    entry.put_slice(b",\"e\":\"");
    entry.put_slice(&hexadecimal(owner_tag.0));
    entry.put_u8(b'"');
    match what {
        What::Opened { requests } => {
            let asked: Vec<Asked> = requests.iter().map(Asked::of).collect();
            // Writing numbers and strings to memory cannot fail.
            put_member(&mut entry, "r", &serde_json::to_vec(&asked).unwrap_or_default());
        }
        What::Event { mark: Mark::FinalResponse(id), .. } | What::Cancelled { request: id } => {
            put_member(&mut entry, "w", id.to_json().as_bytes());
        }
        What::Event { mark: Mark::ServerRequest(server_request), .. }
        | What::Answered { server_request } => {
            put_member(&mut entry, "a", format!("\"{server_request}\"").as_bytes());
        }
        What::Event { mark: Mark::Plain, .. } | What::Closed | What::Checkpoint(_) => {}
    }
    entry.put_slice(b"}\n");
    payload.for_each(|part| entry.put_slice(part));
    entry.freeze()
}

fn kind(what: &What) -> &'static str {
    match what {
        What::Opened { .. } => "opened",
        What::Event { .. } => "event",
        What::Cancelled { .. } => "cancelled",
        What::Answered { .. } => "answered",
        What::Closed => "closed",
        What::Checkpoint(_) => "checkpoint",
    }
}

/// What follows the first line, in pieces.
fn payload(what: &What) -> impl Iterator<Item = &Bytes> + Clone {
    let (requests, only) = match what {
        What::Opened { requests } => (requests.as_slice(), None),
        What::Event { data, .. } => (&[][..], Some(data)),
        What::Checkpoint(carried) => (&[][..], Some(carried)),
        What::Cancelled { .. } | What::Answered { .. } | What::Closed => (&[][..], None),
    };
    requests.iter().filter_map(|opening| opening.rerun.as_ref().map(|r| &r.raw)).chain(only)
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

/// Reads an entry: its stream, the owner that wrote it, and what it says.
pub(crate) fn decode(entry: &Bytes) -> Result<(u64, OwnerTag, What), Unreadable> {
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

fn read(head: Head, payload: Bytes) -> Option<(u64, OwnerTag, What)> {
    let server_request = |server_request: Option<String>| ServerRequestId::parse(&server_request?);
    let bare = payload.is_empty();
    let what = match (head.k.as_str(), head.w, head.a) {
        ("opened", None, None) => What::Opened { requests: openings(head.r?, payload)? },
        ("event", None, None) => What::Event { data: payload, mark: Mark::Plain },
        ("event", Some(id), None) => What::Event { data: payload, mark: Mark::FinalResponse(id) },
        ("event", None, server_requests) => What::Event {
            data: payload,
            mark: Mark::ServerRequest(server_request(server_requests)?),
        },
        ("cancelled", Some(request), None) if bare => What::Cancelled { request },
        ("answered", None, asked) if bare => {
            What::Answered { server_request: server_request(asked)? }
        }
        ("closed", None, None) if bare => What::Closed,
        ("checkpoint", None, None) => What::Checkpoint(payload),
        _ => return None,
    };
    Some((head.s, OwnerTag::parse(&head.e)?, what))
}

/// Cuts the payload of an `opened` into its requests.
fn openings(asked: Vec<Asked>, mut payload: Bytes) -> Option<Vec<Opening>> {
    let mut openings = Vec::with_capacity(asked.len());
    for Asked { i, l, u } in asked {
        let rerun = match l {
            Some(length) if length <= payload.len() => {
                Some(Rerunnable { raw: payload.split_to(length), sure: !u })
            }
            Some(_) => return None,
            None => None,
        };
        openings.push(Opening { id: i, rerun });
    }
    payload.is_empty().then_some(openings)
}

impl Asked {
    fn of(opening: &Opening) -> Self {
        let rerun = opening.rerun.as_ref();
        Self {
            i: opening.id.clone(),
            l: rerun.map(|rerun| rerun.raw.len()),
            u: rerun.is_some_and(|rerun| !rerun.sure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_a_newer_version_is_told_from_a_corrupt_entry() {
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

    fn all() -> Vec<What> {
        let data = Bytes::from_static(b"{\"jsonrpc\":\"2.0\"}");
        let server_request = ServerRequestId { owner_tag: OwnerTag(7), number: 9 };
        let rerun = |sure| Some(Rerunnable { raw: Bytes::from_static(b"{\"id\":\n 7}"), sure });
        let openings = vec![
            Opening { id: RequestId::from(7), rerun: rerun(true) },
            Opening { id: RequestId::from("seven"), rerun: None },
            Opening { id: RequestId::from("eight"), rerun: rerun(false) },
        ];
        vec![
            What::Opened { requests: openings },
            What::Opened { requests: vec![] },
            What::Event { data: data.clone(), mark: Mark::Plain },
            What::Event { data: data.clone(), mark: Mark::FinalResponse(RequestId::from("w")) },
            What::Event { data: data.clone(), mark: Mark::ServerRequest(server_request) },
            What::Cancelled { request: RequestId::from(3) },
            What::Answered { server_request },
            What::Checkpoint(data),
            What::Closed,
        ]
    }

    #[test]
    fn an_entry_reads_back_as_it_was_written() {
        for what in all() {
            let owner_tag = OwnerTag(u64::MAX - 1);
            assert_eq!(decode(&encode(3, owner_tag, &what)), Ok((3, owner_tag, what)));
        }
    }

    #[test]
    fn the_first_line_is_json_that_names_stream_and_owner_tag() {
        let closed = |stream, owner_tag| encode(stream, OwnerTag(owner_tag), &What::Closed);
        assert_eq!(&closed(0, 10)[..], b"{\"k\":\"closed\",\"s\":0,\"e\":\"000000000000000a\"}\n");
        let most = b"{\"k\":\"closed\",\"s\":18446744073709551615,\"e\":\"ffffffffffffffff\"}\n";
        assert_eq!(&closed(u64::MAX, u64::MAX)[..], most);
        let response = RequestId::from("say \"so\"\n");
        let data = Bytes::from_static(b"{}");
        let entry =
            encode(1, OwnerTag(1), &What::Event { data, mark: Mark::FinalResponse(response) });
        assert!(entry.ends_with(b",\"w\":\"say \\\"so\\\"\\n\"}\n{}"), "{entry:?}");
    }

    #[test]
    fn an_entry_cut_short_or_of_another_kind_is_unreadable() {
        for what in all().into_iter().filter(|what| !matches!(what, What::Event { .. })) {
            let entry = encode(3, OwnerTag(1), &what);
            for length in 0..entry.len() {
                let cut = decode(&entry.slice(..length));
                assert!(
                    cut.is_err() || matches!(what, What::Checkpoint(_)),
                    "{what:?} cut to {length}"
                );
            }
        }
        for text in ["", "\n", "{}\n", r#"{"k":"new","s":1,"e":"0000000000000001"}"#] {
            assert!(decode(&Bytes::from_static(text.as_bytes())).is_err(), "{text}");
        }
    }
}

//! How a log entry is written down: one line of JSON that says what it is, then the payload as it came.

use bytes::{BufMut, Bytes, BytesMut};
use protocol::RequestId;
use serde::{Deserialize, Serialize};

use crate::Emitter;
use crate::log::What;

#[derive(Serialize, Deserialize)]
struct Head {
    /// The stream's number.
    s: u64,
    /// Who emitted it, in hexadecimal: JSON numbers end at 53 bits.
    e: String,
    #[serde(flatten)]
    kind: Kind,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "k", rename_all = "lowercase")]
enum Kind {
    Opened { r: Vec<RequestId> },
    Event,
    Closed,
}

/// Writes an entry down.
pub(crate) fn encode(stream: u64, emitter: Emitter, what: &What) -> Bytes {
    let (kind, payload) = match what {
        What::Opened { requests } => (Kind::Opened { r: requests.clone() }, None),
        What::Event(data) => (Kind::Event, Some(data)),
        What::Closed => (Kind::Closed, None),
    };
    let head = Head { s: stream, e: emitter.to_string(), kind };
    let mut entry = BytesMut::with_capacity(64 + payload.map_or(0, |payload| payload.len()));
    // Writing numbers and strings to memory cannot fail.
    entry.put_slice(&serde_json::to_vec(&head).unwrap_or_default());
    if let Some(payload) = payload {
        entry.put_u8(b'\n');
        entry.put_slice(payload);
    }
    entry.freeze()
}

/// Reads an entry: its stream, who emitted it, and what it says. `None` for anything
/// that [`encode`] does not write.
#[cfg(test)]
fn decode(entry: &Bytes) -> Option<(u64, Emitter, What)> {
    let split = entry.iter().position(|byte| *byte == b'\n');
    let head: Head = serde_json::from_slice(&entry[..split.unwrap_or(entry.len())]).ok()?;
    let what = match (head.kind, split) {
        (Kind::Opened { r }, None) => What::Opened { requests: r },
        (Kind::Event, Some(split)) => What::Event(entry.slice(split + 1..)),
        (Kind::Closed, None) => What::Closed,
        _ => return None,
    };
    Some((head.s, Emitter(u64::from_str_radix(&head.e, 16).ok()?), what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_back_as_it_was_written() {
        let requests = vec![RequestId::from(7), RequestId::from("seven")];
        for what in [
            What::Opened { requests },
            What::Opened { requests: vec![] },
            What::Event(Bytes::from_static(b"{\"jsonrpc\":\"2.0\"}")),
            What::Closed,
        ] {
            let emitter = Emitter(u64::MAX - 1);
            assert_eq!(decode(&encode(3, emitter, &what)), Some((3, emitter, what)));
        }
    }
}

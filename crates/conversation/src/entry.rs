//! How a log entry is written down: one line of JSON that says what it is, then the payload
//! as it came.

use bytes::{BufMut, Bytes, BytesMut};
use protocol::RequestId;
use serde::{Deserialize, Serialize};

use crate::Emitter;
use crate::checkpoint::Checkpoint;
use crate::log::{Asked, Mark, What};

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
    Opened {
        r: Vec<Request>,
    },
    Event {
        /// The request that this is the last word on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        w: Option<RequestId>,
        /// The number of the question that this asks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        q: Option<u64>,
    },
    Closed,
    Answered {
        q: u64,
    },
    Checkpoint {
        c: Checkpoint,
    },
}

/// A request that a stream answers, as it is written down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    i: RequestId,
    /// The request itself, where it may be run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    m: Option<String>,
}

impl From<&Asked> for Request {
    fn from(asked: &Asked) -> Self {
        // A request is a line of JSON, and so of text.
        let raw = asked.again.as_ref().and_then(|raw| std::str::from_utf8(raw).ok());
        Self { i: asked.id.clone(), m: raw.map(str::to_owned) }
    }
}

impl From<Request> for Asked {
    fn from(request: Request) -> Self {
        Self { id: request.i, again: request.m.map(Bytes::from) }
    }
}

/// Writes an entry down.
pub(crate) fn encode(stream: u64, emitter: Emitter, what: &What) -> Bytes {
    let mut payload = None;
    let kind = match what {
        What::Opened { requests } => Kind::Opened { r: requests.iter().map(Into::into).collect() },
        What::Event { data, mark } => {
            payload = Some(data);
            match mark {
                Mark::None => Kind::Event { w: None, q: None },
                Mark::Word(id) => Kind::Event { w: Some(id.clone()), q: None },
                Mark::Ask(number) => Kind::Event { w: None, q: Some(*number) },
            }
        }
        What::Closed => Kind::Closed,
        What::Answered { ask } => Kind::Answered { q: *ask },
        What::Checkpoint(checkpoint) => Kind::Checkpoint { c: (**checkpoint).clone() },
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
pub(crate) fn decode(entry: &Bytes) -> Option<(u64, Emitter, What)> {
    let split = entry.iter().position(|byte| *byte == b'\n');
    let head: Head = serde_json::from_slice(&entry[..split.unwrap_or(entry.len())]).ok()?;
    let what = match (head.kind, split) {
        (Kind::Opened { r }, None) => {
            What::Opened { requests: r.into_iter().map(Into::into).collect() }
        }
        (Kind::Event { w, q }, Some(split)) => {
            let mark = match (w, q) {
                (None, None) => Mark::None,
                (Some(id), None) => Mark::Word(id),
                (None, Some(number)) => Mark::Ask(number),
                (Some(_), Some(_)) => return None,
            };
            What::Event { data: entry.slice(split + 1..), mark }
        }
        (Kind::Closed, None) => What::Closed,
        (Kind::Answered { q }, None) => What::Answered { ask: q },
        (Kind::Checkpoint { c }, None) => What::Checkpoint(Box::new(c)),
        _ => return None,
    };
    Some((head.s, emitter(&head.e)?, what))
}

/// Reads an emitter as it is written down.
pub(crate) fn emitter(text: &str) -> Option<Emitter> {
    u64::from_str_radix(text, 16).ok().map(Emitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_back_as_it_was_written() {
        let again = Bytes::from_static(br#"{"jsonrpc":"2.0","id":7,"method":"tools/list"}"#);
        let requests = vec![
            Asked { id: RequestId::from(7), again: Some(again) },
            Asked { id: RequestId::from("seven"), again: None },
        ];
        let data = Bytes::from_static(b"{\"jsonrpc\":\"2.0\"}");
        for what in [
            What::Opened { requests },
            What::Opened { requests: vec![] },
            What::Event { data: data.clone(), mark: Mark::None },
            What::Event { data: data.clone(), mark: Mark::Word("x\ny".into()) },
            What::Event { data, mark: Mark::Ask(3) },
            What::Closed,
            What::Answered { ask: 3 },
            What::Checkpoint(Box::default()),
        ] {
            let emitter = Emitter(u64::MAX - 1);
            assert_eq!(decode(&encode(3, emitter, &what)), Some((3, emitter, what)));
        }
    }

    #[test]
    fn what_is_no_entry_is_not_read() {
        for text in
            ["", "{}", "x\ny", r#"{"s":1,"e":"0","k":"new"}"#, r#"{"s":1,"e":"x","k":"closed"}"#]
        {
            assert_eq!(decode(&Bytes::from_static(text.as_bytes())), None, "{text}");
        }
    }
}

//! Encodes and decodes the events of a reply between the owner and the node of the connection.

use bytes::Bytes;
use conversation::{Answer, Frame, Refusal};
use protocol::{Revision, SessionId};
use telemetry::Label;

use super::messages::{self, Array, Cursor, Event, Handshake, Open, Reply, ReplyKind};
use super::{Format, legacy};
use crate::{HandshakeSummary, ReplyEvent};

/// Every refusal without content, at the position that is its number.
const REFUSALS: [Refusal; 8] = [
    Refusal::UnknownSession,
    Refusal::UnknownEvent,
    Refusal::NothingMore,
    Refusal::TooManySessions,
    Refusal::Busy,
    Refusal::Stopping,
    Refusal::Unavailable,
    Refusal::Moved,
];

/// What a reply has beside its event.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct About {
    /// What logs say of the session, with the first event.
    pub(super) handshake: Option<HandshakeSummary>,
    /// The backends whose servers refused the tokens of the call, with the next event.
    pub(super) refused: Vec<String>,
}

/// Encodes one reply.
pub(super) fn encode(event: &ReplyEvent, format: Format) -> Bytes {
    encode_about(event, About::default(), format)
}

/// Encodes one reply, and what else it has. The legacy format has no place for that.
pub(super) fn encode_about(event: &ReplyEvent, about: About, format: Format) -> Bytes {
    let About { handshake, refused } = about;
    let handshake = handshake.map(|summary| Handshake {
        revision: summary.revision.as_str().to_owned(),
        client: summary.client.as_ref().map_or("", |client| client.as_str()).to_owned(),
    });
    let kind = match (format, event) {
        (Format::Legacy, event) => return legacy::encode_reply(event),
        (Format::Protobuf, ReplyEvent::Answer(answer)) => answer_kind(answer),
        (Format::Protobuf, ReplyEvent::Open { welcome, at }) => {
            ReplyKind::Open(Open { welcome: *welcome, at: at.map(Into::into) })
        }
        (Format::Protobuf, ReplyEvent::Frame(frame)) => frame_kind(frame),
        (Format::Protobuf, ReplyEvent::Abort) => ReplyKind::Abort(()),
        (Format::Protobuf, ReplyEvent::Moved) => ReplyKind::Moved(()),
        (Format::Protobuf, ReplyEvent::LeaseLost { held_secs }) => ReplyKind::LeaseLost(*held_secs),
    };
    messages::encode(&Reply { kind: Some(kind), handshake, refused })
}

/// Encodes the id of a new session, which precedes the replies.
pub(super) fn encode_opened(session: &SessionId, format: Format) -> Bytes {
    match format {
        Format::Legacy => legacy::encode_opened(session),
        Format::Protobuf => encode_kind(ReplyKind::Opened(session.as_str().to_owned())),
    }
}

/// Decodes one reply, in any format; `None` for invalid bytes.
pub(super) fn decode(bytes: Bytes) -> Option<ReplyEvent> {
    decode_about(bytes).map(|(event, _)| event)
}

/// Decodes one reply, and what else it has.
pub(super) fn decode_about(bytes: Bytes) -> Option<(ReplyEvent, About)> {
    if Format::of(&bytes) == Format::Legacy {
        return Some((legacy::decode_reply(bytes)?, About::default()));
    }
    let Reply { kind, handshake, refused } = <Reply as prost::Message>::decode(bytes).ok()?;
    let handshake = handshake.and_then(|Handshake { revision, client }| {
        let client = Some(client).filter(|client| !client.is_empty());
        let client = client.map(|client| Label::of(&client));
        Some(HandshakeSummary { revision: Revision::named(&revision)?, client })
    });
    Some((event_of(kind?)?, About { handshake, refused }))
}

fn event_of(kind: ReplyKind) -> Option<ReplyEvent> {
    let answer = match kind {
        ReplyKind::Json(json) => Answer::Json(json),
        ReplyKind::Welcome(json) => Answer::Welcome(json),
        ReplyKind::Array(Array { messages }) => Answer::Array(messages),
        ReplyKind::Accepted(()) => Answer::Accepted,
        ReplyKind::Nothing(()) => Answer::Nothing,
        ReplyKind::Ended(()) => Answer::Ended,
        ReplyKind::Refused(number) => {
            Answer::Refused(REFUSALS.get(usize::try_from(number).ok()?)?.clone())
        }
        ReplyKind::Rejected(rejection) => Answer::Refused(Refusal::Rejected(rejection.read()?)),
        ReplyKind::Message(Event { id, data }) => {
            return Some(ReplyEvent::Frame(Frame::Message { id: id.map(Into::into), data }));
        }
        ReplyKind::Cursor(Cursor { id, retry }) => {
            return Some(ReplyEvent::Frame(Frame::Cursor { id: id?.into(), retry }));
        }
        ReplyKind::Retry(retry) => return Some(ReplyEvent::Frame(Frame::Retry(retry))),
        ReplyKind::KeepAlive(()) => return Some(ReplyEvent::Frame(Frame::KeepAlive)),
        ReplyKind::Open(Open { welcome, at }) => {
            return Some(ReplyEvent::Open { welcome, at: at.map(Into::into) });
        }
        ReplyKind::Abort(()) => return Some(ReplyEvent::Abort),
        ReplyKind::Moved(()) => return Some(ReplyEvent::Moved),
        ReplyKind::LeaseLost(held_secs) => return Some(ReplyEvent::LeaseLost { held_secs }),
        ReplyKind::Opened(_) => return None,
    };
    Some(ReplyEvent::Answer(answer))
}

/// Decodes the id of a new session; `None` for other bytes.
pub(super) fn decode_opened(bytes: Bytes) -> Option<SessionId> {
    if Format::of(&bytes) == Format::Legacy {
        return legacy::decode_opened(bytes);
    }
    match decode_kind(bytes)? {
        ReplyKind::Opened(session) => SessionId::parse(&session),
        _ => None,
    }
}

fn encode_kind(kind: ReplyKind) -> Bytes {
    messages::encode(&Reply { kind: Some(kind), handshake: None, refused: Vec::new() })
}

fn decode_kind(bytes: Bytes) -> Option<ReplyKind> {
    <Reply as prost::Message>::decode(bytes).ok()?.kind
}

fn answer_kind(answer: &Answer) -> ReplyKind {
    match answer {
        Answer::Accepted => ReplyKind::Accepted(()),
        Answer::Json(json) => ReplyKind::Json(json.clone()),
        Answer::Welcome(json) => ReplyKind::Welcome(json.clone()),
        Answer::Array(all) => ReplyKind::Array(Array { messages: all.clone() }),
        Answer::Nothing => ReplyKind::Nothing(()),
        Answer::Ended => ReplyKind::Ended(()),
        Answer::Refused(Refusal::Rejected(rejection)) => ReplyKind::Rejected(rejection.into()),
        Answer::Refused(refusal) => {
            let number = REFUSALS.iter().position(|known| known == refusal);
            ReplyKind::Refused(number.unwrap_or(REFUSALS.len()) as u32)
        }
    }
}

fn frame_kind(frame: &Frame) -> ReplyKind {
    match frame {
        Frame::Cursor { id, retry } => {
            ReplyKind::Cursor(Cursor { id: Some((*id).into()), retry: *retry })
        }
        Frame::Retry(retry) => ReplyKind::Retry(*retry),
        Frame::Message { id, data } => {
            ReplyKind::Message(Event { id: id.map(Into::into), data: data.clone() })
        }
        Frame::KeepAlive => ReplyKind::KeepAlive(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::{ErrorCode, Rejection, RequestId};

    use super::*;
    use crate::routing::legacy::VERSION;

    use conversation::{EventId, OwnerTag};

    const ID: EventId = EventId { stream: 300, owner_tag: OwnerTag(u64::MAX), number: 7 };

    fn each() -> Vec<ReplyEvent> {
        let json = Bytes::from_static(b"{\"a\": 1}");
        let rejection = |id: Option<RequestId>| {
            Refusal::Rejected(Rejection::new(ErrorCode::Refused, "why not").of(id))
        };
        let refusals = [
            rejection(None),
            rejection(Some(RequestId::from(-7))),
            rejection(Some(RequestId::from("7"))),
            Refusal::UnknownSession,
            Refusal::UnknownEvent,
            Refusal::NothingMore,
            Refusal::TooManySessions,
            Refusal::Busy,
            Refusal::Stopping,
            Refusal::Unavailable,
            Refusal::Moved,
        ];
        let answers = [
            Answer::Accepted,
            Answer::Json(json.clone()),
            Answer::Welcome(json.clone()),
            Answer::Array(vec![json.clone(), Bytes::new()]),
            Answer::Nothing,
            Answer::Ended,
        ];
        let frames = [
            Frame::Cursor { id: ID, retry: u32::MAX },
            Frame::Retry(0),
            Frame::Message { id: Some(ID), data: json.clone() },
            Frame::Message { id: None, data: json },
            Frame::KeepAlive,
        ];
        let answers = answers.into_iter().chain(refusals.map(Answer::Refused));
        let rest = [
            ReplyEvent::Open { welcome: true, at: None },
            ReplyEvent::Open { welcome: false, at: Some(ID) },
            ReplyEvent::Abort,
            ReplyEvent::Moved,
            ReplyEvent::LeaseLost { held_secs: 25 },
        ];
        answers.map(ReplyEvent::Answer).chain(frames.map(ReplyEvent::Frame)).chain(rest).collect()
    }

    #[test]
    fn every_event_is_decoded_as_it_was_encoded() {
        for format in Format::ALL {
            for event in each() {
                let decoded = decode(encode(&event, format)).unwrap();
                assert_eq!(format!("{decoded:?}"), format!("{event:?}"));
            }
        }
    }

    #[test]
    fn every_code_of_a_rejection_arrives() {
        let codes = [
            ErrorCode::ParseError,
            ErrorCode::InvalidRequest,
            ErrorCode::MethodNotFound,
            ErrorCode::InvalidParams,
            ErrorCode::InternalError,
            ErrorCode::HeaderMismatch,
            ErrorCode::SessionNotFound,
            ErrorCode::Refused,
        ];
        for code in codes {
            let refusal = Refusal::Rejected(Rejection::new(code, "why"));
            let event = ReplyEvent::Answer(Answer::Refused(refusal));
            for format in Format::ALL {
                let decoded = decode(encode(&event, format)).unwrap();
                assert_eq!(format!("{decoded:?}"), format!("{event:?}"));
            }
        }
    }

    #[test]
    fn a_frame_costs_a_few_bytes_beside_its_payload() {
        let data = Bytes::from(vec![b'x'; 1_000]);
        let frame = ReplyEvent::Frame(Frame::Message { id: Some(ID), data });
        assert!(encode(&frame, Format::Legacy).len() <= 1_020);
        assert!(encode(&frame, Format::Protobuf).len() <= 1_024);
    }

    #[test]
    fn a_payload_is_a_slice_of_the_received_bytes() {
        let data = Bytes::from(vec![b'x'; 1_000]);
        for format in Format::ALL {
            for event in [
                ReplyEvent::Answer(Answer::Json(data.clone())),
                ReplyEvent::Answer(Answer::Array(vec![data.clone(), data.clone()])),
                ReplyEvent::Frame(Frame::Message { id: Some(ID), data: data.clone() }),
            ] {
                let bytes = encode(&event, format);
                let payload = match decode(bytes.clone()) {
                    Some(ReplyEvent::Answer(Answer::Json(payload))) => payload,
                    Some(ReplyEvent::Answer(Answer::Array(all))) => all[1].clone(),
                    Some(ReplyEvent::Frame(Frame::Message { data, .. })) => data,
                    other => panic!("{other:?}"),
                };
                assert!(bytes.as_ptr_range().contains(&payload.as_ptr()));
                assert_eq!(payload, data);
            }
        }
    }

    #[test]
    fn a_reply_with_an_unknown_number_is_rejected() {
        for kind in [
            ReplyKind::Refused(REFUSALS.len() as u32),
            ReplyKind::Refused(u32::MAX),
            ReplyKind::Rejected(messages::Rejection::default()),
            ReplyKind::Cursor(Cursor { retry: 1, id: None }),
        ] {
            assert!(decode(encode_kind(kind.clone())).is_none(), "{kind:?}");
        }
    }

    #[test]
    fn a_truncated_or_extended_reply_is_rejected() {
        for format in Format::ALL {
            for event in each() {
                let bytes = encode(&event, format);
                for length in 0..bytes.len() {
                    let cut = bytes.slice(..length);
                    assert!(decode(cut).is_none(), "{format:?} {event:?} at {length}");
                }
                assert!(decode([&bytes[..], b"\0"].concat().into()).is_none());
            }
        }
    }

    #[test]
    fn a_reply_also_says_what_logs_and_the_sender_of_tokens_need() {
        let handshake = Some(HandshakeSummary {
            revision: Revision::V2025_06_18,
            client: Some(Label::of("inspector/2")),
        });
        let about = About { handshake, refused: vec!["acme/main#0".to_owned()] };
        for event in each() {
            let bytes = encode_about(&event, about.clone(), Format::Protobuf);
            let (decoded, received) = decode_about(bytes.clone()).unwrap();
            assert_eq!(format!("{decoded:?}"), format!("{event:?}"));
            assert_eq!(received, about);
            // A program that does not know the fields ignores them.
            assert!(bytes.starts_with(&encode(&event, Format::Protobuf)));
            let legacy = encode_about(&event, about.clone(), Format::Legacy);
            assert_eq!(decode_about(legacy).unwrap().1, About::default());
        }
    }

    proptest! {
        #[test]
        fn any_reply_of_a_peer_is_decoded_or_rejected(bytes: Vec<u8>, which: usize, at: usize) {
            let each = each();
            for format in Format::ALL {
                let mut spoilt = encode(&each[which % each.len()], format).to_vec();
                let at = at % spoilt.len();
                spoilt.splice(at..(at + bytes.len()).min(spoilt.len()), bytes.iter().copied());
                let _ = decode(spoilt.into());
            }
            let _ = decode([&[VERSION], &bytes[..]].concat().into());
            let _ = decode(bytes.clone().into());
            let _ = decode_opened(bytes.into());
        }
    }
}

//! A forwarded request, as bytes: the caller, the session, and the request.

use std::sync::Arc;

use bytes::Bytes;
use ownership::{Incarnation, SessionRequest};
use protocol::{Body, Message, Mirrored, SessionId};
use tenants::Principal;

use super::VERSION;
use super::wire::{Reader, Writer};
use crate::Caller;

/// How often a call was forwarded when it arrives at the owner.
const HOPS: u8 = 1;

/// Older nodes write 1 here where the session is to be claimed before it gets the call. They
/// are told that the call was not started, and call again.
const CALLS: u8 = 0;

/// What stands there instead in a call that its receiver passes on to the owner.
const RELAYED: u8 = 2;

/// One call, as its receiver reads it. The caller's tenant and principal are what the
/// sender's front found out; the receiver compares them with the session's own.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) tenant: Arc<str>,
    pub(crate) principal: Principal,
    pub(crate) session: SessionId,
    /// `None`: the receiver is asked to take the session up, where it has no owner or where the
    /// receiver itself is said to be that, and answers whether it has it. The sender leaves the
    /// cluster, came to it a moment ago, or called in vain before.
    pub(crate) request: Option<SessionRequest>,
}

impl Call {
    /// Writes a call for the owner: counted as forwarded once.
    pub(crate) fn encode(caller: &Caller, request: Option<&SessionRequest>) -> Bytes {
        let mut writer = Writer::new(capacity(request));
        Self::write(&mut writer, caller, request);
        writer.finish()
    }

    /// Writes a call that its receiver is to pass on to `owner`, which its sender cannot reach.
    pub(crate) fn encode_relayed(
        caller: &Caller,
        request: Option<&SessionRequest>,
        owner: Incarnation,
    ) -> Bytes {
        let mut writer = Writer::new(capacity(request));
        writer.byte(RELAYED);
        writer.word(owner.0);
        writer.byte(VERSION);
        Self::write(&mut writer, caller, request);
        writer.finish()
    }

    fn write(writer: &mut Writer, caller: &Caller, request: Option<&SessionRequest>) {
        writer.byte(HOPS);
        writer.byte(CALLS);
        writer.text(&caller.tenant.name);
        writer.text(caller.principal.name());
        writer.text(caller.session.as_str());
        match request {
            Some(SessionRequest::Post { body, mirrored, again }) => {
                writer.byte(0);
                writer.byte(u8::from(*again));
                put_mirrored(writer, mirrored.as_deref());
                put_body(writer, body);
            }
            Some(SessionRequest::Listen { after }) => {
                writer.byte(1);
                writer.perhaps(after.as_deref(), Writer::text);
            }
            Some(SessionRequest::Delete) => writer.byte(2),
            None => writer.byte(3),
        }
    }

    /// Reads what a peer sent; `None` where it is no call, or one that has been forwarded
    /// more often than it may.
    pub(crate) fn decode(bytes: Bytes) -> Option<Self> {
        let mut reader = Reader::new(bytes)?;
        if reader.byte()? != HOPS {
            return None;
        }
        reader.truth()?;
        let tenant = reader.text()?.into();
        let principal = Principal::named(&reader.text()?);
        let session = SessionId::parse(&reader.text()?)?;
        let request = match reader.byte()? {
            0 => {
                let again = reader.truth()?;
                let mirrored = take_mirrored(&mut reader)?;
                Some(SessionRequest::Post { mirrored, body: take_body(&mut reader)?, again })
            }
            1 => Some(SessionRequest::Listen { after: reader.perhaps(Reader::text)? }),
            2 => Some(SessionRequest::Delete),
            3 => None,
            _ => return None,
        };
        reader.finish(Self { tenant, principal, session, request })
    }
}

/// A call that its receiver passes on, unread.
#[derive(Debug)]
pub(super) struct Relayed {
    /// Who is to serve it.
    pub(super) owner: Incarnation,
    /// The call as the owner is to receive it: a slice of what was received.
    pub(super) call: Bytes,
}

impl Relayed {
    /// Reads what a peer sent; `None` where it is nothing to be passed on. What is passed on is
    /// never passed on again.
    pub(super) fn decode(bytes: Bytes) -> Option<Self> {
        let mut reader = Reader::new(bytes)?;
        if reader.byte()? != RELAYED {
            return None;
        }
        let owner = Incarnation(reader.word()?);
        let call = reader.rest();
        call.starts_with(&[VERSION, HOPS]).then_some(Self { owner, call })
    }
}

/// About as much as a call takes, so that a large payload is copied once.
fn capacity(request: Option<&SessionRequest>) -> usize {
    let payload = match request {
        Some(SessionRequest::Post { body: Body::One(message), .. }) => message.raw().len(),
        Some(SessionRequest::Post { body: Body::Batch(members), .. }) => {
            members.iter().flatten().map(|message| message.raw().len() + 8).sum()
        }
        Some(SessionRequest::Listen { .. } | SessionRequest::Delete) | None => 0,
    };
    payload + 256
}

pub(super) fn put_mirrored(writer: &mut Writer, mirrored: Option<&Mirrored>) {
    let headers = || mirrored.into_iter().flat_map(Mirrored::headers);
    writer.number(headers().count() as u64);
    for (name, value) in headers() {
        writer.text(name);
        writer.bytes(value);
    }
}

pub(super) fn take_mirrored(reader: &mut Reader) -> Option<Option<Box<Mirrored>>> {
    let headers = reader.several(|reader| Some((reader.text()?, reader.bytes()?)))?;
    Some(Mirrored::from_headers(headers.iter().map(|(name, value)| (&**name, &**value))))
}

/// A batch's members go one by one: what the sender refused in it stays refused.
fn put_body(writer: &mut Writer, body: &Body) {
    match body {
        Body::One(message) => {
            writer.byte(0);
            writer.bytes(message.raw());
        }
        Body::Batch(members) => {
            writer.byte(1);
            writer.number(members.len() as u64);
            for member in members {
                match member {
                    Ok(message) => {
                        writer.byte(0);
                        writer.bytes(message.raw());
                    }
                    Err(rejection) => {
                        writer.byte(1);
                        writer.rejection(rejection);
                    }
                }
            }
        }
    }
}

fn take_body(reader: &mut Reader) -> Option<Body> {
    let message = |reader: &mut Reader| Message::parse(reader.bytes()?).ok();
    let member = |reader: &mut Reader| match reader.byte()? {
        0 => message(reader).map(Ok),
        1 => reader.rejection().map(Err),
        _ => None,
    };
    match reader.byte()? {
        0 => message(reader).map(Body::One),
        1 => reader.several(member).filter(|members| !members.is_empty()).map(Body::Batch),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::{ErrorCode, Limits, Rejection};
    use tenants::Tenant;

    use super::*;

    fn caller() -> Caller {
        let tenant = Tenant { name: "acme".into(), allowed_origins: vec![], sessions_max: 1 };
        Caller {
            tenant: Arc::new(tenant),
            principal: Principal::named("ada"),
            session: SessionId::parse("a-session").unwrap(),
        }
    }

    fn post(json: &str) -> SessionRequest {
        let body = protocol::parse(Bytes::copy_from_slice(json.as_bytes()), &Limits::default());
        let headers = [("Mcp-Method", b"tools/call".as_slice()), ("mcp-name", b"\xFFecho")];
        SessionRequest::Post {
            body: body.unwrap(),
            mirrored: Mirrored::from_headers(headers.into_iter()),
            again: true,
        }
    }

    const BATCH: &str = r#"[{"jsonrpc":"2.0","id":"x","method":"ping"},7,
        {"jsonrpc":"2.0","method":"notifications/initialized"}]"#;

    fn requests() -> Vec<Option<SessionRequest>> {
        let batch =
            SessionRequest::Post { body: body_of(Some(post(BATCH))), mirrored: None, again: false };
        vec![
            Some(post(
                r#" {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"ü": 1e3}} "#,
            )),
            Some(post(BATCH)),
            Some(batch),
            Some(SessionRequest::Listen { after: None }),
            Some(SessionRequest::Listen { after: Some("7.0123456789abcdef-9".into()) }),
            Some(SessionRequest::Delete),
            None,
        ]
    }

    fn body_of(request: Option<SessionRequest>) -> Body {
        let Some(SessionRequest::Post { body, .. }) = request else { panic!("no post") };
        body
    }

    #[test]
    fn a_call_arrives_as_it_was_sent() {
        for request in requests() {
            let call = Call::decode(Call::encode(&caller(), request.as_ref())).unwrap();
            assert_eq!(&*call.tenant, "acme");
            assert_eq!(call.principal, Principal::named("ada"));
            assert_eq!(call.session, caller().session);
            assert_eq!(format!("{:?}", call.request), format!("{request:?}"));
        }
    }

    #[test]
    fn everybody_stays_everybody() {
        let caller = Caller { principal: Principal::anonymous(), ..caller() };
        let call = Call::decode(Call::encode(&caller, Some(&SessionRequest::Delete))).unwrap();
        assert!(call.principal.is_anonymous());
    }

    #[test]
    fn what_was_refused_in_a_batch_stays_refused() {
        let call = Call::decode(Call::encode(&caller(), Some(&post(BATCH)))).unwrap();
        let Body::Batch(members) = body_of(call.request) else { panic!("no batch") };
        let refused: Vec<&Rejection> = members.iter().filter_map(|m| m.as_ref().err()).collect();
        assert!(matches!(refused[..], [Rejection { code: ErrorCode::InvalidRequest, .. }]));
    }

    #[test]
    fn a_payload_is_a_slice_of_what_was_received() {
        let bytes = Call::encode(&caller(), requests()[0].as_ref());
        let call = Call::decode(bytes.clone()).unwrap();
        let Body::One(message) = body_of(call.request) else { panic!("a batch") };
        assert!(bytes.as_ptr_range().contains(&message.raw().as_ptr()));
    }

    #[test]
    fn a_relayed_call_is_passed_on_as_it_was_written_and_only_once() {
        for request in requests() {
            let relayed = Call::encode_relayed(&caller(), request.as_ref(), Incarnation(7));
            assert!(Call::decode(relayed.clone()).is_none());
            let passed_on = Relayed::decode(relayed.clone()).unwrap();
            assert_eq!(passed_on.owner, Incarnation(7));
            assert_eq!(passed_on.call, Call::encode(&caller(), request.as_ref()));
            assert!(relayed.as_ptr_range().contains(&passed_on.call.as_ptr()));
            assert!(Relayed::decode(passed_on.call).is_none());
            let twice = [&relayed[..10], &relayed[..]].concat();
            assert!(Relayed::decode(twice.into()).is_none());
        }
    }

    #[test]
    fn a_second_hop_is_no_call() {
        let mut bytes = Call::encode(&caller(), Some(&SessionRequest::Delete)).to_vec();
        bytes[1] += 1;
        assert!(Call::decode(bytes.into()).is_none());
    }

    #[test]
    fn a_call_that_is_cut_or_goes_on_is_no_call() {
        for request in requests() {
            let bytes = Call::encode(&caller(), request.as_ref());
            for length in 0..bytes.len() {
                assert!(Call::decode(bytes.slice(..length)).is_none(), "{request:?} at {length}");
            }
            assert!(Call::decode([&bytes[..], b"\0"].concat().into()).is_none());
        }
    }

    proptest! {
        #[test]
        fn whatever_a_peer_sends_is_read_or_refused(bytes: Vec<u8>, which in 0..7_usize, at: usize) {
            let mut spoilt = Call::encode(&caller(), requests()[which].as_ref()).to_vec();
            let at = at % spoilt.len();
            spoilt.splice(at..(at + bytes.len()).min(spoilt.len()), bytes.iter().copied());
            let _ = Call::decode(spoilt.into());
            let _ = Call::decode([&[super::super::VERSION, HOPS], &bytes[..]].concat().into());
            let _ = Call::decode(bytes.into());
        }
    }
}

//! Encodes and decodes a forwarded request: the caller, the session, and the request.

use std::sync::Arc;

use bytes::Bytes;
use ownership::{Incarnation, SessionRequest};
use protocol::{Body, Message, SessionId, TraceContext, UpstreamTokens};
use tenants::Principal;

use super::messages::{
    self, Batch, CallKind, Listen, Member, MemberKind, Post, PostBody, RelayOut, RelayRequest,
    Request, RequestKind,
};
use super::opening::Opening;
use super::operator_messages::OperatorCall;
use super::{Format, legacy};
use crate::Caller;

/// A forwarded request, as its receiver reads it. The caller's tenant and principal were determined
/// by the sender's front; the receiver compares them with those of the session.
#[derive(Debug)]
pub(crate) struct ForwardedRequest {
    pub(crate) tenant: Arc<str>,
    pub(crate) principal: Principal,
    pub(crate) session: SessionId,
    /// `None`: a request to claim the session, if it has no owner or if its record names the
    /// receiver, and to reply whether the receiver has it. The sender drains, has just joined, or
    /// called in vain before.
    pub(crate) request: Option<SessionRequest>,
    /// Where the request is in a trace.
    pub(crate) trace: Option<Box<TraceContext>>,
    /// The tokens for upstream servers.
    pub(crate) tokens: Option<UpstreamTokens>,
}

/// The content of a call from a peer.
#[derive(Debug)]
pub(super) enum Received {
    /// A request for a session of this node, which never forwards it.
    Forwarded(ForwardedRequest),
    /// A request to create a session for a client of another node.
    Opening(Opening),
    /// A call to relay to another node.
    Relayed(Relayed),
    /// A call of an operator at another node.
    Operator(OperatorCall),
    /// Revocations that the peer knows.
    Revocations(messages::Revocations),
    /// The demand of another node for limits of the cluster.
    Limits(Bytes),
}

/// A call that its receiver relays without decoding it.
#[derive(Debug)]
pub(super) struct Relayed {
    /// The owner, to which the call is relayed.
    pub(super) owner: Incarnation,
    /// The call for the owner: a slice of the received bytes.
    pub(super) call: Bytes,
}

impl ForwardedRequest {
    /// Encodes a call for the owner.
    pub(crate) fn encode(
        caller: &Caller,
        trace: Option<&TraceContext>,
        request: Option<&SessionRequest>,
        format: Format,
    ) -> Bytes {
        match format {
            Format::Legacy => legacy::encode_call(caller, request),
            Format::Protobuf => messages::encode(&message(caller, trace, request)),
        }
    }

    /// Encodes a call that its receiver is to relay to `owner`, which its sender cannot reach. Both
    /// read the format.
    pub(crate) fn encode_relayed(
        caller: &Caller,
        trace: Option<&TraceContext>,
        request: Option<&SessionRequest>,
        owner: Incarnation,
        format: Format,
    ) -> Bytes {
        match format {
            Format::Legacy => legacy::encode_relayed(caller, request, owner),
            Format::Protobuf => {
                let request = Some(message(caller, trace, request));
                messages::encode(&RelayRequest {
                    relay: Some(RelayOut { owner: owner.0, request }),
                })
            }
        }
    }

    fn read(call: messages::Call) -> Option<Self> {
        let request = match call.kind? {
            CallKind::Post(post) => Some(SessionRequest::Post {
                mirrored: messages::mirrored(&post.headers),
                body: read_body(post.body?)?,
                again: post.again,
            }),
            CallKind::Listen(Listen { after }) => Some(SessionRequest::Listen { after }),
            CallKind::Delete(()) => Some(SessionRequest::Delete),
            CallKind::TakeUp(()) => None,
        };
        Some(Self {
            tenant: call.tenant.into(),
            principal: Principal::named(&call.principal),
            session: SessionId::parse(&call.session)?,
            request,
            trace: read_trace(call.trace),
            tokens: messages::read_tokens(call.tokens, call.has_no_tokens),
        })
    }
}

impl Received {
    /// Decodes a call from a peer, in any format; `None` for bytes that no node sends.
    pub(super) fn decode(bytes: Bytes) -> Option<Self> {
        if Format::of(&bytes) == Format::Legacy {
            return legacy::decode_call(bytes.clone())
                .map(Self::Forwarded)
                .or_else(|| legacy::decode_opening(bytes.clone()).map(Self::Opening))
                .or_else(|| legacy::decode_relayed(bytes).map(Self::Relayed));
        }
        match Request::read(bytes)? {
            RequestKind::Call(call) => ForwardedRequest::read(call).map(Self::Forwarded),
            RequestKind::Opening(opening) => Opening::read(opening).map(Self::Opening),
            RequestKind::Relay(relay) => Relayed::read(relay).map(Self::Relayed),
            RequestKind::Operator(call) => Some(Self::Operator(call)),
            RequestKind::Revocations(revocations) => Some(Self::Revocations(revocations)),
            RequestKind::Limits(reports) => Some(Self::Limits(reports)),
        }
    }
}

impl Relayed {
    /// Only a forwarded request can be relayed, so a call is never relayed twice.
    fn read(relay: messages::Relay) -> Option<Self> {
        let RequestKind::Call(_) = Request::read(relay.request.clone())? else { return None };
        Some(Self { owner: Incarnation(relay.owner), call: relay.request })
    }
}

/// A text that no node writes is no trace.
pub(super) fn read_trace(text: Option<String>) -> Option<Box<TraceContext>> {
    TraceContext::of_origin_text(&text?).map(Box::new)
}

fn message(
    caller: &Caller,
    trace: Option<&TraceContext>,
    request: Option<&SessionRequest>,
) -> Request {
    let kind = match request {
        Some(SessionRequest::Post { body, mirrored, again }) => CallKind::Post(Post {
            again: *again,
            headers: messages::headers(mirrored.as_deref()),
            body: Some(write_body(body)),
        }),
        Some(SessionRequest::Listen { after }) => CallKind::Listen(Listen { after: after.clone() }),
        Some(SessionRequest::Delete) => CallKind::Delete(()),
        None => CallKind::TakeUp(()),
    };
    RequestKind::Call(messages::Call {
        tenant: caller.tenant.name.to_string(),
        principal: caller.principal.name().to_owned(),
        session: caller.session.as_str().to_owned(),
        kind: Some(kind),
        trace: trace.map(TraceContext::origin_text),
        tokens: messages::tokens(caller.tokens.as_ref()),
        has_no_tokens: messages::has_no_tokens(caller.tokens.as_ref()),
    })
    .into()
}

/// The members of a batch are encoded one by one: a member that the sender refused stays refused.
fn write_body(body: &Body) -> PostBody {
    match body {
        Body::One(message) => PostBody::Message(message.raw().clone()),
        Body::Batch(members) => {
            let kind = |member: &Result<Message, protocol::Rejection>| match member {
                Ok(message) => MemberKind::Message(message.raw().clone()),
                Err(rejection) => MemberKind::Rejection(Box::new(rejection.into())),
            };
            let trace = |member: &Result<Message, protocol::Rejection>| match member {
                Ok(Message::Request(request)) => request.trace.as_ref().map(|t| t.origin_text()),
                _ => None,
            };
            let members =
                members.iter().map(|one| Member { kind: Some(kind(one)), trace: trace(one) });
            PostBody::Batch(Batch { members: members.collect() })
        }
    }
}

fn read_body(body: PostBody) -> Option<Body> {
    let member = |member: Member| match member.kind? {
        MemberKind::Message(raw) => {
            let mut message = Message::parse(raw).ok()?;
            if let Message::Request(request) = &mut message {
                request.trace = read_trace(member.trace);
            }
            Some(Ok(message))
        }
        MemberKind::Rejection(rejection) => rejection.read().map(Err),
    };
    match body {
        PostBody::Message(raw) => Message::parse(raw).ok().map(Body::One),
        PostBody::Batch(Batch { members }) => {
            let members: Option<Vec<_>> = members.into_iter().map(member).collect();
            members.filter(|members| !members.is_empty()).map(Body::Batch)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::{ErrorCode, Limits, Mirrored, Rejection, TokenSource, UpstreamToken};
    use tenants::Tenant;

    use super::*;
    use crate::routing::legacy::VERSION;

    fn decode(bytes: Bytes) -> Option<ForwardedRequest> {
        match Received::decode(bytes) {
            Some(Received::Forwarded(call)) => Some(call),
            _ => None,
        }
    }

    fn decode_relayed(bytes: Bytes) -> Option<Relayed> {
        match Received::decode(bytes) {
            Some(Received::Relayed(relayed)) => Some(relayed),
            _ => None,
        }
    }

    /// Each request, in each format.
    fn sent() -> impl Iterator<Item = (Format, Option<SessionRequest>)> {
        Format::ALL.into_iter().flat_map(|format| requests().into_iter().map(move |r| (format, r)))
    }

    fn caller() -> Caller {
        let tenant = Tenant::of_peer("acme".into(), 1);
        Caller {
            tenant: Arc::new(tenant),
            principal: Principal::named("ada"),
            session: SessionId::parse("a-session").unwrap(),
            tokens: None,
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
        for (format, request) in sent() {
            let call = decode(ForwardedRequest::encode(&caller(), None, request.as_ref(), format))
                .unwrap();
            assert_eq!(&*call.tenant, "acme");
            assert_eq!(call.principal, Principal::named("ada"));
            assert_eq!(call.session, caller().session);
            assert_eq!(format!("{:?}", call.request), format!("{request:?}"));
        }
    }

    struct Subject(#[expect(dead_code, reason = "never read")] &'static str);

    impl TokenSource for Subject {
        fn note_refused(&self, _token: &str) {}
    }

    #[test]
    fn a_client_without_tokens_differs_from_a_server_that_needs_none() {
        for tokens in [Some(UpstreamTokens::new(Vec::new())), None] {
            let caller = Caller { tokens: tokens.clone(), ..caller() };
            let delete = SessionRequest::Delete;
            let bytes = ForwardedRequest::encode(&caller, None, Some(&delete), Format::Protobuf);
            assert_eq!(decode(bytes).unwrap().tokens, tokens);
        }
    }

    #[test]
    fn the_tokens_of_a_call_arrive_and_where_others_can_be_got_does_not() {
        let token = |source| UpstreamToken {
            backend: "acme/main".into(),
            text: "hunter2".into(),
            source,
            link: None,
        };
        let source: Option<Arc<dyn TokenSource>> = Some(Arc::new(Subject("subject")));
        let tokens = Some(UpstreamTokens::new(vec![token(source)]));
        let caller = Caller { tokens, ..caller() };
        for request in [Some(SessionRequest::Delete), Some(post(BATCH)), None] {
            let bytes = ForwardedRequest::encode(&caller, None, request.as_ref(), Format::Protobuf);
            assert!(!bytes.windows(7).any(|window| window == b"subject"));
            let call = decode(bytes).unwrap();
            assert!(!format!("{call:?}").contains("hunter2"));
            let tokens = call.tokens.unwrap();
            assert_eq!(tokens, UpstreamTokens::new(vec![token(None)]));
            let source = tokens.all()[0].source.as_ref().unwrap();
            source.note_refused("hunter2");
            assert!(source.is_refused());
        }
    }

    #[test]
    fn an_anonymous_principal_stays_anonymous() {
        let caller = Caller { principal: Principal::anonymous(), ..caller() };
        for format in Format::ALL {
            let bytes =
                ForwardedRequest::encode(&caller, None, Some(&SessionRequest::Delete), format);
            assert!(decode(bytes).unwrap().principal.is_anonymous());
        }
    }

    #[test]
    fn a_refused_member_of_a_batch_stays_refused() {
        for format in Format::ALL {
            let call =
                decode(ForwardedRequest::encode(&caller(), None, Some(&post(BATCH)), format))
                    .unwrap();
            let Body::Batch(members) = body_of(call.request) else { panic!("no batch") };
            let refused: Vec<_> = members.iter().filter_map(|m| m.as_ref().err()).collect();
            assert!(matches!(refused[..], [Rejection { code: ErrorCode::InvalidRequest, .. }]));
        }
    }

    #[test]
    fn a_payload_is_a_slice_of_the_received_bytes() {
        for format in Format::ALL {
            let bytes = ForwardedRequest::encode(&caller(), None, requests()[0].as_ref(), format);
            let call = decode(bytes.clone()).unwrap();
            let Body::One(message) = body_of(call.request) else { panic!("a batch") };
            assert!(bytes.as_ptr_range().contains(&message.raw().as_ptr()));
            let bytes = ForwardedRequest::encode(&caller(), None, requests()[1].as_ref(), format);
            let call = decode(bytes.clone()).unwrap();
            let Body::Batch(members) = body_of(call.request) else { panic!("no batch") };
            for message in members.iter().flatten() {
                assert!(bytes.as_ptr_range().contains(&message.raw().as_ptr()));
            }
        }
    }

    #[test]
    fn a_relayed_call_reaches_the_owner_unchanged_and_is_relayed_only_once() {
        for (format, request) in sent() {
            let relayed = ForwardedRequest::encode_relayed(
                &caller(),
                None,
                request.as_ref(),
                Incarnation(7),
                format,
            );
            assert!(decode(relayed.clone()).is_none());
            let passed_on = decode_relayed(relayed.clone()).unwrap();
            assert_eq!(passed_on.owner, Incarnation(7));
            assert_eq!(
                passed_on.call,
                ForwardedRequest::encode(&caller(), None, request.as_ref(), format)
            );
            assert!(relayed.as_ptr_range().contains(&passed_on.call.as_ptr()));
            assert!(decode_relayed(passed_on.call).is_none());
            let twice = match format {
                Format::Legacy => [&relayed[..10], &relayed[..]].concat().into(),
                Format::Protobuf => {
                    let relay = messages::Relay { owner: 8, request: relayed };
                    messages::encode(&Request::from(RequestKind::Relay(relay)))
                }
            };
            assert!(Received::decode(twice).is_none());
        }
    }

    #[test]
    fn a_call_with_a_second_hop_is_rejected() {
        let delete = Some(&SessionRequest::Delete);
        let mut bytes = ForwardedRequest::encode(&caller(), None, delete, Format::Legacy).to_vec();
        bytes[1] += 1;
        assert!(Received::decode(bytes.into()).is_none());
    }

    #[test]
    fn a_truncated_or_extended_call_is_rejected() {
        for (format, request) in sent() {
            let bytes = ForwardedRequest::encode(&caller(), None, request.as_ref(), format);
            for length in 0..bytes.len() {
                assert!(
                    Received::decode(bytes.slice(..length)).is_none(),
                    "{format:?} {request:?} at {length}"
                );
            }
            assert!(Received::decode([&bytes[..], b"\0"].concat().into()).is_none());
        }
    }

    #[test]
    fn a_field_that_a_later_program_adds_is_ignored() {
        for request in requests() {
            let mut call = message(&caller(), None, request.as_ref());
            let bytes = [&messages::encode(&call)[..], b"\xFA\x01\x03new"].concat();
            assert!(decode(bytes.into()).is_some());
            // Protocol Buffers merge fields: this adds to the call itself.
            let added = [10, 6, 0xFA, 1, 3, b'n', b'e', b'w'];
            let bytes = [&messages::encode(&call)[..], &added].concat();
            assert!(decode(bytes.into()).is_some());
            call.kind = None;
            assert!(decode(messages::encode(&call)).is_none());
        }
    }

    #[test]
    fn a_call_with_an_invalid_session_id_is_rejected() {
        let Some(RequestKind::Call(mut call)) = message(&caller(), None, None).kind else {
            panic!("no call")
        };
        for session in ["", "a b", "\u{e9}", &"x".repeat(10_000)] {
            call.session = session.to_owned();
            let bytes = messages::encode(&Request::from(RequestKind::Call(call.clone())));
            assert!(decode(bytes).is_none(), "{session}");
        }
    }

    #[test]
    fn a_call_with_an_empty_batch_is_rejected() {
        let Some(RequestKind::Call(mut call)) = message(&caller(), None, None).kind else {
            panic!("no call")
        };
        let body = Some(PostBody::Batch(Batch { members: Vec::new() }));
        call.kind = Some(CallKind::Post(Post { again: false, headers: Vec::new(), body }));
        assert!(decode(messages::encode(&Request::from(RequestKind::Call(call)))).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_of_a_peer_are_decoded_or_rejected(
            bytes: Vec<u8>,
            which in 0..7_usize,
            at: usize,
        ) {
            for format in Format::ALL {
                let request = &requests()[which];
                let (caller, request, owner) = (caller(), request.as_ref(), Incarnation(7));
                let relayed = ForwardedRequest::encode_relayed(&caller, None, request, owner, format);
                for whole in [ForwardedRequest::encode(&caller, None, request, format), relayed] {
                    let mut spoilt = whole.to_vec();
                    let at = at % spoilt.len();
                    spoilt.splice(at..(at + bytes.len()).min(spoilt.len()), bytes.iter().copied());
                    let _ = Received::decode(spoilt.into());
                }
            }
            let _ = Received::decode([&[VERSION, 1], &bytes[..]].concat().into());
            for kind in [10, 18, 26] {
                let _ = Received::decode([&[kind, bytes.len() as u8], &bytes[..]].concat().into());
            }
            let _ = Received::decode(bytes.into());
        }
    }
}

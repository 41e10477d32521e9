//! Sessions that clients open at a node that drains: another node creates them.
//!
//! A client reaches a draining node where the load balancer has not yet noticed that the node
//! drains. No client repeats an `initialize`, so the node forwards it instead of refusing it, as
//! long as another node accepts sessions.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use cluster::{CallError, ForwardedCall, Peer, Replies};
use conversation::{Answer, Refusal};
use protocol::{Body, Message, Mirrored, Request, SessionId, UpstreamTokens};
use telemetry::{Span, enter_span};
use tenants::{Principal, Tenant};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::forwarded_request::read_trace;
use super::messages::{self, RequestKind};
use super::serving::{EncodedReply, begin_span_of, outcome, spawn};
use super::{Format, legacy, reply_codec};
use crate::ReplyEvent;
use crate::held::until_sessions_can_be_created;
use crate::node::Node;
use crate::session::{LocalReply, NewSession, Opener, create_session};

/// The tenant and principal that open a session, and their `initialize`.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) tenant: Arc<Tenant>,
    pub(super) principal: Principal,
    /// The `initialize`; `None` for a duplex session.
    pub(super) request: Option<Request>,
    pub(super) mirrored: Option<Box<Mirrored>>,
}

impl Opening {
    fn encode(&self, format: Format) -> Bytes {
        if format == Format::Legacy {
            return legacy::encode_opening(self);
        }
        messages::encode(&messages::Request::from(RequestKind::Opening(messages::Opening {
            tenant: self.tenant.name.to_string(),
            sessions_max: self.tenant.sessions_max as u64,
            principal: self.principal.name().to_owned(),
            headers: messages::headers(self.mirrored.as_deref()),
            tokens: messages::tokens(self.tokens()),
            has_no_tokens: messages::has_no_tokens(self.tokens()),
            request: self.request.as_ref().map(|request| request.raw().clone()),
            trace: self
                .request
                .as_ref()
                .and_then(|request| Some(request.trace.as_ref()?.origin_text())),
        })))
    }

    fn tokens(&self) -> Option<&UpstreamTokens> {
        self.request.as_ref()?.tokens.as_ref()
    }

    /// `None` for values that no node sends.
    pub(super) fn read(opening: messages::Opening) -> Option<Self> {
        let name = opening.tenant.into();
        let sessions_max = usize::try_from(opening.sessions_max).ok()?;
        let request = match opening.request {
            Some(raw) => match Message::parse(raw) {
                Ok(Message::Request(mut request)) => {
                    request.tokens = messages::read_tokens(opening.tokens, opening.has_no_tokens);
                    request.trace = read_trace(opening.trace);
                    Some(request)
                }
                _ => return None,
            },
            None => None,
        };
        Some(Self {
            tenant: Arc::new(Tenant::of_peer(name, sessions_max)),
            principal: Principal::named(&opening.principal),
            request,
            mirrored: messages::mirrored(&opening.headers),
        })
    }

    /// Creates the session on this node, for a peer's client.
    pub(super) fn create_session_for_peer(
        mut self,
        node: &Arc<Node>,
        format: Format,
    ) -> Box<dyn Replies> {
        let tokens = self.tokens().cloned();
        let span = self.request.as_mut().and_then(|request| begin_span_of(node, request));
        let _within = enter_span(span.as_ref().map(Span::at));
        let node = Arc::clone(node);
        let stage = Stage::Creating(spawn(async move {
            until_sessions_can_be_created(&node).await?;
            let (sender, created) = oneshot::channel();
            let creating = Arc::clone(&node);
            // A session runs on one of its node's threads. If no thread accepts it, `sender` is
            // dropped and `created` returns an error.
            node.arbiters.spawn(move || {
                let Self { tenant, principal, request, mirrored } = self;
                let (recorded, is_recorded) = oneshot::channel();
                let (new_session, is_recorded) = match request {
                    Some(request) => (posted(request, mirrored), None),
                    None => (NewSession::Connected { recorded }, Some(is_recorded)),
                };
                let (context, registry) = (&creating.context, &creating.registry);
                // The address of a peer's client is not known here.
                let opener = Opener { tenant: &tenant, principal: &principal, client: None };
                let created = create_session(context, registry, opener, new_session);
                let _ = sender.send(created.map(|created| (created, is_recorded)));
            });
            let (created, is_recorded) = created.await.unwrap_or(Err(Refusal::Unavailable))?;
            if let Some(is_recorded) = is_recorded {
                is_recorded.await.map_err(|_| Refusal::Unavailable)?;
            }
            Ok(created)
        }));
        Box::new(NewSessionReplies { stage, format, tokens, spans: span.into_iter().collect() })
    }
}

fn posted(request: Request, mirrored: Option<Box<Mirrored>>) -> NewSession {
    NewSession::Posted { body: Body::One(request.into()), mirrored }
}

/// Creates a session at another node, from an `initialize`, or a duplex session without one. Its
/// replies arrive by the call. A duplex session ends with the call, and with either node.
pub(crate) async fn create_at_peer(
    peer: &Peer,
    tenant: &Arc<Tenant>,
    principal: &Principal,
    initialize: Option<(Request, Option<Box<Mirrored>>)>,
) -> Result<(SessionId, ForwardedCall), Refusal> {
    let (tenant, principal) = (Arc::clone(tenant), principal.clone());
    let (request, mirrored) =
        initialize.map_or((None, None), |(request, mirrored)| (Some(request), mirrored));
    let opening = Opening { tenant, principal, request, mirrored };
    let mut calling = peer.call(opening.encode(Format::read_by(peer)));
    let session = new_session_id(&mut calling).await?;
    Ok((session, calling))
}

/// The new session's id, which comes before the replies for its client.
async fn new_session_id(calling: &mut ForwardedCall) -> Result<SessionId, Refusal> {
    let reply = match poll_fn(|context| calling.poll_next(context)).await {
        Some(Ok(reply)) => reply,
        // The peer may have created the session, but its id did not arrive: no client can use it.
        Some(Err(_)) | None => return Err(Refusal::Unavailable),
    };
    if let Some(session) = reply_codec::decode_opened(reply.clone()) {
        return Ok(session);
    }
    match reply_codec::decode(reply) {
        Some(ReplyEvent::Answer(Answer::Refused(refusal))) => Err(refusal),
        _ => Err(Refusal::Unavailable),
    }
}

type Creating = AbortOnDropHandle<Result<(SessionId, LocalReply), Refusal>>;

/// The replies to a peer whose client opens a session here: the session's id first.
struct NewSessionReplies {
    stage: Stage,
    /// The format of the call.
    format: Format,
    /// The tokens of the call.
    tokens: Option<UpstreamTokens>,
    /// The span of this node, if the request is traced.
    spans: Vec<Span>,
}

enum Stage {
    Creating(Creating),
    Replying(EncodedReply),
    Over,
}

impl Replies for NewSessionReplies {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        let format = self.format;
        let reply = match &mut self.stage {
            Stage::Creating(creating) => match outcome(ready!(Pin::new(creating).poll(context))) {
                Ok((session, reply)) => {
                    let spans = std::mem::take(&mut self.spans);
                    let reply = EncodedReply::new(reply, format, self.tokens.take()).within(spans);
                    self.stage = Stage::Replying(reply);
                    reply_codec::encode_opened(&session, format)
                }
                Err(refusal) => {
                    self.stage = Stage::Over;
                    let refused = ReplyEvent::Answer(Answer::Refused(refusal));
                    reply_codec::encode(&refused, format)
                }
            },
            Stage::Replying(reply) => return reply.poll_next(context),
            Stage::Over => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(reply)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use protocol::TraceContext;

    use super::super::forwarded_request::Received;
    use super::*;

    fn decode(bytes: Bytes) -> Option<Opening> {
        match Received::decode(bytes) {
            Some(Received::Opening(opening)) => Some(opening),
            _ => None,
        }
    }

    fn opening() -> Opening {
        let request = br#"{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"a":1}}"#;
        let Ok(Message::Request(mut request)) = Message::parse(Bytes::from_static(request)) else {
            panic!("no request")
        };
        request.trace = TraceContext::of_origin_text(TRACE).map(Box::new);
        let tenant = Tenant::of_peer("acme".into(), 300);
        let mirrored = Mirrored::from_headers([("Mcp-Method", &b"initialize"[..])].into_iter());
        let (tenant, principal) = (Arc::new(tenant), Principal::named("ada"));
        Opening { tenant, principal, request: Some(request), mirrored }
    }

    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn duplex() -> Opening {
        Opening { request: None, mirrored: None, ..opening() }
    }

    #[test]
    fn an_opening_arrives_as_it_was_sent_and_is_no_call() {
        for format in Format::ALL {
            for sent in [opening(), duplex()] {
                let mut arrived = decode(sent.encode(format)).unwrap();
                if let (Format::Legacy, Some(request)) = (format, &mut arrived.request) {
                    // An earlier program has no place for it.
                    request.trace = TraceContext::of_origin_text(TRACE).map(Box::new);
                }
                assert_eq!(format!("{arrived:?}"), format!("{sent:?}"));
            }
        }
    }

    #[test]
    fn a_truncated_or_extended_opening_is_rejected() {
        for format in Format::ALL {
            let bytes = opening().encode(format);
            for length in 0..bytes.len() {
                assert!(decode(bytes.slice(..length)).is_none(), "{format:?} at {length}");
            }
            assert!(decode([&bytes[..], b"\0"].concat().into()).is_none());
        }
    }

    #[test]
    fn the_id_of_a_new_session_is_no_reply_of_one() {
        let session = SessionId::parse("a-session").unwrap();
        for format in Format::ALL {
            let opened = reply_codec::encode_opened(&session, format);
            assert_eq!(reply_codec::decode_opened(opened.clone()), Some(session.clone()));
            assert!(reply_codec::decode(opened).is_none());
            let abort = reply_codec::encode(&ReplyEvent::Abort, format);
            assert!(reply_codec::decode_opened(abort).is_none());
        }
    }

    proptest! {
        #[test]
        fn any_opening_of_a_peer_is_decoded_or_rejected(bytes: Vec<u8>, at: usize) {
            for format in Format::ALL {
                let mut spoilt = opening().encode(format).to_vec();
                let at = at % spoilt.len();
                spoilt.splice(at..(at + bytes.len()).min(spoilt.len()), bytes.iter().copied());
                let _ = Received::decode(spoilt.into());
            }
        }
    }
}

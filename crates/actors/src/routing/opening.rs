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
use protocol::{Body, Message, Mirrored, Request, SessionId};
use tenants::{Principal, Tenant};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::call::{put_mirrored, take_mirrored};
use super::reply_codec;
use super::serving::{EncodedReply, outcome, spawn};
use super::wire::{Reader, Writer};
use crate::ReplyEvent;
use crate::held::until_sessions_can_be_created;
use crate::node::Node;
use crate::session::{LocalReply, NewSession, create_session};

/// Where a call to a session says how often it was forwarded.
const OPENING: u8 = 0xFF;
/// The first byte of the first reply where there is a session. No reply of a session begins so.
const OPENED: u8 = 0xFF;

/// The tenant and principal that open a session, and their `initialize`.
#[derive(Debug)]
pub(super) struct Opening {
    tenant: Arc<Tenant>,
    principal: Principal,
    /// The `initialize`; none where every message of the session goes to one connection.
    request: Option<Request>,
    mirrored: Option<Box<Mirrored>>,
}

impl Opening {
    fn encode(&self) -> Bytes {
        let raw = self.request.as_ref().map_or(&[][..], |request| request.raw());
        let mut writer = Writer::new(raw.len() + 256);
        writer.byte(OPENING);
        writer.text(&self.tenant.name);
        writer.number(self.tenant.sessions_max as u64);
        writer.text(self.principal.name());
        put_mirrored(&mut writer, self.mirrored.as_deref());
        writer.bytes(raw);
        writer.finish()
    }

    /// Reads what a peer sent; `None` where it is something else.
    pub(super) fn decode(bytes: Bytes) -> Option<Self> {
        let mut reader = Reader::new(bytes)?;
        if reader.byte()? != OPENING {
            return None;
        }
        let name = reader.text()?.into();
        let sessions_max = usize::try_from(reader.number()?).ok()?;
        let tenant = Arc::new(Tenant { name, allowed_origins: Vec::new(), sessions_max });
        let principal = Principal::named(&reader.text()?);
        let mirrored = take_mirrored(&mut reader)?;
        let raw = reader.bytes()?;
        let request = match Message::parse(raw.clone()) {
            _ if raw.is_empty() => None,
            Ok(Message::Request(request)) => Some(request),
            _ => return None,
        };
        reader.finish(Self { tenant, principal, request, mirrored })
    }

    /// Creates the session on this node, for a peer's client.
    pub(super) fn serve(self, node: &Arc<Node>) -> Box<dyn Replies> {
        let node = Arc::clone(node);
        Box::new(NewSessionReplies::Creating(spawn(async move {
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
                let created = create_session(context, registry, &tenant, &principal, new_session);
                let _ = sender.send(created.map(|created| (created, is_recorded)));
            });
            let (created, is_recorded) = created.await.unwrap_or(Err(Refusal::Unavailable))?;
            if let Some(is_recorded) = is_recorded {
                is_recorded.await.map_err(|_| Refusal::Unavailable)?;
            }
            Ok(created)
        })))
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
    let mut calling = peer.call(opening.encode());
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
    if let Some(session) = decode_id(reply.clone()) {
        return Ok(session);
    }
    match reply_codec::decode(reply) {
        Some(ReplyEvent::Answer(Answer::Refused(refusal))) => Err(refusal),
        _ => Err(Refusal::Unavailable),
    }
}

fn encode_id(session: &SessionId) -> Bytes {
    let mut writer = Writer::new(session.as_str().len() + 8);
    writer.byte(OPENED);
    writer.text(session.as_str());
    writer.finish()
}

fn decode_id(reply: Bytes) -> Option<SessionId> {
    let mut reader = Reader::new(reply)?;
    if reader.byte()? != OPENED {
        return None;
    }
    let session = SessionId::parse(&reader.text()?)?;
    reader.finish(session)
}

type Creating = AbortOnDropHandle<Result<(SessionId, LocalReply), Refusal>>;

/// The replies to a peer whose client opens a session here: the session's id first.
enum NewSessionReplies {
    Creating(Creating),
    Replying(EncodedReply),
    Over,
}

impl Replies for NewSessionReplies {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        match self {
            Self::Creating(creating) => {
                let reply = match outcome(ready!(Pin::new(creating).poll(context))) {
                    Ok((session, reply)) => {
                        *self = Self::Replying(EncodedReply(reply));
                        encode_id(&session)
                    }
                    Err(refusal) => {
                        *self = Self::Over;
                        reply_codec::encode(&ReplyEvent::Answer(Answer::Refused(refusal)))
                    }
                };
                Poll::Ready(Some(Ok(reply)))
            }
            Self::Replying(reply) => reply.poll_next(context),
            Self::Over => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::call::Call;
    use super::*;

    fn opening() -> Opening {
        let request = br#"{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"a":1}}"#;
        let Ok(Message::Request(request)) = Message::parse(Bytes::from_static(request)) else {
            panic!("no request")
        };
        let tenant = Tenant { name: "acme".into(), allowed_origins: vec![], sessions_max: 300 };
        let mirrored = Mirrored::from_headers([("Mcp-Method", &b"initialize"[..])].into_iter());
        let (tenant, principal) = (Arc::new(tenant), Principal::named("ada"));
        Opening { tenant, principal, request: Some(request), mirrored }
    }

    fn duplex() -> Opening {
        Opening { request: None, mirrored: None, ..opening() }
    }

    #[test]
    fn an_opening_arrives_as_it_was_sent_and_is_no_call() {
        for sent in [opening(), duplex()] {
            let arrived = Opening::decode(sent.encode()).unwrap();
            assert_eq!(format!("{arrived:?}"), format!("{sent:?}"));
            assert!(Call::decode(sent.encode()).is_none());
        }
    }

    #[test]
    fn an_opening_that_is_cut_or_goes_on_is_none() {
        let bytes = opening().encode();
        for length in 0..bytes.len() {
            assert!(Opening::decode(bytes.slice(..length)).is_none(), "at {length}");
        }
        assert!(Opening::decode([&bytes[..], b"\0"].concat().into()).is_none());
    }

    #[test]
    fn the_id_of_a_new_session_is_no_reply_of_one() {
        let session = SessionId::parse("a-session").unwrap();
        assert_eq!(decode_id(encode_id(&session)), Some(session.clone()));
        assert!(reply_codec::decode(encode_id(&session)).is_none());
        assert!(decode_id(reply_codec::encode(&ReplyEvent::Abort)).is_none());
    }
}

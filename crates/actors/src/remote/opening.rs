//! Sessions that clients open at a node that leaves: another node makes them.
//!
//! A client reaches a leaving node where the load balancer has not yet noticed that the node
//! leaves. No client repeats an `initialize`, so the node forwards it instead of refusing it, as
//! long as another node accepts sessions.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use cluster::{CallError, Calling, Peer, Replies};
use conversation::{Answer, Refusal};
use protocol::{Body, Message, Mirrored, Request, SessionId};
use tenants::{Principal, Tenant};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::call::{put_mirrored, take_mirrored};
use super::serving::{ended, spawn};
use super::wire::{Reader, Writer};
use super::{RoutedRequest, SessionRequest, reply_codec};
use crate::handle::Node;
use crate::session_start::{self, NewSession};
use crate::{Caller, Opened, ReplyEvent, ReplyStream};

/// Where a call to a session says how often it was forwarded.
const OPENING: u8 = 0xFF;
/// What the first reply begins with where there is a session. No reply of a session does.
const OPENED: u8 = 0xFF;

/// Who opens a session, and how.
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

    /// Makes the session on this node, for a peer's client.
    pub(super) fn serve(self, node: &Arc<Node>) -> Box<dyn Replies> {
        let node = Arc::clone(node);
        Box::new(Serving::Beginning(spawn(async move {
            node.until_it_may_open().await?;
            let (tell, told) = oneshot::channel();
            let arbiters = Arc::clone(&node);
            // A session runs on one of its node's threads. If no thread accepts it, `tell` is
            // dropped and `told` returns an error.
            arbiters.arbiters.spawn(move || {
                let Self { tenant, principal, request, mirrored } = self;
                let (recorded, is_recorded) = oneshot::channel();
                let (new_session, is_recorded) = match request {
                    Some(request) => (posted(request, mirrored), None),
                    None => (NewSession::Connected { recorded }, Some(is_recorded)),
                };
                let opened = session_start::create_session(&node, &tenant, &principal, new_session);
                let _ = tell.send(opened.map(|opened| (opened, is_recorded)));
            });
            let (opened, is_recorded) = told.await.unwrap_or(Err(Refusal::Unavailable))?;
            if let Some(is_recorded) = is_recorded {
                is_recorded.await.map_err(|_| Refusal::Unavailable)?;
            }
            Ok(opened)
        })))
    }
}

fn posted(request: Request, mirrored: Option<Box<Mirrored>>) -> NewSession {
    NewSession::Posted { body: Body::One(request.into()), mirrored }
}

/// Opens a session through another node whose every message goes to one connection, here.
/// It ends with that connection, and with either node.
pub(crate) async fn connect(
    node: &Arc<Node>,
    peer: &Peer,
    tenant: &Arc<Tenant>,
    principal: &Principal,
) -> Result<Opened, Refusal> {
    let (tenant, principal) = (Arc::clone(tenant), principal.clone());
    let opening = Opening { tenant, principal, request: None, mirrored: None };
    let mut calling = peer.call(opening.encode());
    let session = opened(&mut calling).await?;
    let Opening { tenant, principal, .. } = opening;
    let caller = Caller { tenant, principal, session: session.clone() };
    Ok(Opened {
        session,
        replies: ReplyStream::new(RoutedRequest::of_duplex(node, caller, calling), node, true),
    })
}

/// Opens a session through another node.
pub(crate) async fn open(
    node: &Arc<Node>,
    peer: &Peer,
    tenant: &Arc<Tenant>,
    principal: &Principal,
    request: Request,
    mirrored: Option<Box<Mirrored>>,
) -> Result<Opened, Refusal> {
    let (tenant, principal) = (Arc::clone(tenant), principal.clone());
    let body = Body::One(request.clone().into());
    let opening = Opening { tenant, principal, request: Some(request), mirrored };
    let mut calling = peer.call(opening.encode());
    let session = opened(&mut calling).await?;
    let request = SessionRequest::Post { body, mirrored: opening.mirrored, again: false };
    let caller =
        Caller { tenant: opening.tenant, principal: opening.principal, session: session.clone() };
    Ok(Opened {
        session,
        replies: ReplyStream::new(
            RoutedRequest::of_new_session(node, caller, request, calling),
            node,
            false,
        ),
    })
}

/// The new session's name, which comes before what its client is told.
async fn opened(calling: &mut Calling) -> Result<SessionId, Refusal> {
    let reply = match poll_fn(|context| calling.poll_next(context)).await {
        Some(Ok(reply)) => reply,
        // The peer may have created the session, but its id did not arrive: no client can use it.
        Some(Err(_)) | None => return Err(Refusal::Unavailable),
    };
    if let Some(session) = name_in(reply.clone()) {
        return Ok(session);
    }
    match reply_codec::decode(reply) {
        Some(ReplyEvent::Answer(Answer::Refused(refusal))) => Err(refusal),
        _ => Err(Refusal::Unavailable),
    }
}

fn name(session: &SessionId) -> Bytes {
    let mut writer = Writer::new(session.as_str().len() + 8);
    writer.byte(OPENED);
    writer.text(session.as_str());
    writer.finish()
}

fn name_in(reply: Bytes) -> Option<SessionId> {
    let mut reader = Reader::new(reply)?;
    if reader.byte()? != OPENED {
        return None;
    }
    let session = SessionId::parse(&reader.text()?)?;
    reader.finish(session)
}

type Beginning = AbortOnDropHandle<Result<Opened, Refusal>>;

/// What a peer's client is told that opens a session here.
enum Serving {
    Beginning(Beginning),
    Telling(ReplyStream),
    Over,
}

impl Replies for Serving {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        match self {
            Self::Beginning(beginning) => {
                let reply = match ended(ready!(Pin::new(beginning).poll(context))) {
                    Ok(Opened { session, replies }) => {
                        *self = Self::Telling(replies.untimed());
                        name(&session)
                    }
                    Err(refusal) => {
                        *self = Self::Over;
                        reply_codec::encode(&ReplyEvent::Answer(Answer::Refused(refusal)))
                    }
                };
                Poll::Ready(Some(Ok(reply)))
            }
            Self::Telling(replies) => Poll::Ready(
                ready!(replies.poll_next(context)).as_ref().map(reply_codec::encode).map(Ok),
            ),
            Self::Over => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Call;
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
    fn the_name_of_a_session_is_no_reply_of_one() {
        let session = SessionId::parse("a-session").unwrap();
        assert_eq!(name_in(name(&session)), Some(session.clone()));
        assert!(reply_codec::decode(name(&session)).is_none());
        assert!(name_in(reply_codec::encode(&ReplyEvent::Abort)).is_none());
    }
}

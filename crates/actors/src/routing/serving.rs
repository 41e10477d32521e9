//! Handles the calls of peers. Requests for sessions of this node are handled like those of its own
//! front. A call that is to be relayed goes to the owner that its sender named, over an established
//! link, and never further.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use cluster::{CallError, ForwardedCall, PeerCallHandler, Replies};
use conversation::{Answer, Frame, Refusal};
use fairness::{Computing, compute, is_long};
use ownership::SessionRequest;
use protocol::{Body, Message, Request, TraceContext, UpstreamTokens};
use telemetry::{Span, Spanned, enter_span};
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

use super::forwarded_request::{ForwardedRequest, Received, Relayed};
use super::long_call::LongCall;
use super::reply_codec::About;
use super::sharing::Members;
use super::{Format, operator_calls, reply_codec, revocation_codec};
use crate::ReplyEvent;
use crate::metrics;
use crate::node::{Entry, Node};
use crate::session::LocalReply;
use crate::spans::{begin_owner_span, position};
use crate::takeover::{Found, Identity, find_session};

/// Handles the calls of peers as long as the node exists.
pub(crate) struct PeerService(Weak<Node>);

impl PeerService {
    pub(crate) fn new(node: &Arc<Node>) -> Self {
        Self(Arc::downgrade(node))
    }
}

impl PeerCallHandler for PeerService {
    fn handle_call(&self, call: Bytes) -> Option<Box<dyn Replies>> {
        let node = self.0.upgrade()?;
        let format = Format::of(&call);
        match LongCall::new(&node, &call, format, Received::decode, begin_replies) {
            Some(replies) => Some(Box::new(replies)),
            None => begin_replies(&node, Received::decode(call), format),
        }
    }
}

/// Begins what a call demands. `None`: nothing was begun, and the caller may send the call to another node.
fn begin_replies(
    node: &Arc<Node>,
    call: Option<Received>,
    format: Format,
) -> Option<Box<dyn Replies>> {
    let call = match call {
        Some(Received::Forwarded(call)) => call,
        Some(Received::Opening(opening)) => {
            metrics::SERVED.inc();
            return Some(opening.create_session_for_peer(node, format));
        }
        Some(Received::Relayed(Relayed { owner, call })) => {
            let peer = node.context.cluster.reachable(owner)?;
            metrics::RELAYED.inc();
            return Some(Box::new(RelayedReplies(peer.call(call))));
        }
        Some(Received::Operator(call)) => return operator_calls::serve(node, call),
        Some(Received::Revocations(received)) => {
            let known = node.context.cluster.revocations();
            return Some(revocation_codec::receive(known, received));
        }
        Some(Received::Limits(reports)) => {
            let members = Members::of(&node.context.cluster);
            return Some(Box::new(OneReply(node.limits.answer(reports, &members.all))));
        }
        None => {
            tracing::error!("undecodable call from a peer; check the versions of all nodes");
            return Some(Box::new(Refused(Some(Refusal::Unavailable), format)));
        }
    };
    let ForwardedRequest { tenant, principal, session, request, trace, tokens } = call;
    let _within = enter_span(trace.as_deref().map(position));
    let replies: Box<dyn Replies> = match request {
        Some(mut request) => {
            let spans = begin_spans(node, trace.as_deref(), &mut request);
            match node.enter(&tenant, &principal, &session, request, tokens.as_ref(), true) {
                Entry::Entered(reply) => {
                    Box::new(EncodedReply::new(reply, format, tokens).within(spans))
                }
                // The request was not started; the caller locates the session again.
                Entry::Refused(Refusal::Moved) | Entry::Absent => return None,
                Entry::Refused(refusal) => Box::new(Refused(Some(refusal), format)),
            }
        }
        // A task on the runtime of the peer links: the result is polled by the thread that
        // writes to the peer, which may be any thread.
        None => {
            let node = Arc::clone(node);
            Box::new(RequestedClaim(
                Some(spawn(async move {
                    let identity = Identity { tenant: &tenant, principal: &principal };
                    match find_session(&node, identity, &session, true).await? {
                        Found::Here => Ok(()),
                        // The caller locates the session itself.
                        Found::At(_) | Found::Ownerless => Err(Refusal::Moved),
                        // The caller requests another node to claim it.
                        Found::NoRoom => Err(Refusal::TooManySessions),
                        Found::Ended => Err(Refusal::UnknownSession),
                    }
                })),
                format,
            ))
        }
    };
    metrics::SERVED.inc();
    Some(replies)
}

/// Begins the spans of this node for the requests that are traced, and moves each into its span.
fn begin_spans(
    node: &Node,
    trace: Option<&TraceContext>,
    request: &mut SessionRequest,
) -> Vec<Span> {
    if let SessionRequest::Post { body: Body::Batch(members), .. } = request {
        let traced = members.iter_mut().filter_map(|member| match member {
            Ok(Message::Request(member)) => begin_span_of(node, member),
            _ => None,
        });
        return traced.collect();
    }
    let Some(trace) = trace else { return Vec::new() };
    let posted = match &*request {
        SessionRequest::Post { body: Body::One(Message::Request(request)), .. } => Some(request),
        _ => None,
    };
    let span = begin_span(node, posted, trace);
    let at = span.as_ref().map_or(trace.span, |span| span.at().span);
    request.set_trace(Some(Box::new(TraceContext { span: at, ..*trace })));
    span.into_iter().collect()
}

/// Begins the span of this node for a request that is traced, and moves it into the span.
pub(super) fn begin_span_of(node: &Node, request: &mut Request) -> Option<Span> {
    let trace = **request.trace.as_ref()?;
    let span = begin_span(node, Some(request), &trace)?;
    request.trace = Some(Box::new(TraceContext { span: span.at().span, ..trace }));
    Some(span)
}

/// Begins the span of this node for one request.
fn begin_span(node: &Node, request: Option<&Request>, trace: &TraceContext) -> Option<Span> {
    let mut span = begin_owner_span(&node.context.traces, request, trace)?;
    span.set("roundhouse.node", node.context.cluster.name().to_string());
    Some(span)
}

type Reply = Poll<Option<Result<Bytes, CallError>>>;

/// The replies of a relayed call. They are read only as fast as the caller takes them, so that at
/// most a window of them waits here. Dropping this cancels the call at the owner.
struct RelayedReplies(ForwardedCall);

impl Replies for RelayedReplies {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Reply {
        self.0.poll_next(context)
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

/// The reply of a session of this node to a request that a peer forwarded.
pub(super) struct EncodedReply {
    reply: LocalReply,
    /// The format of the call.
    format: Format,
    /// A long event, which another thread encodes: to copy it takes milliseconds.
    encoding: Option<Computing<Bytes>>,
    /// Whether an event was encoded: the first one says what logs say of the session.
    has_begun: bool,
    /// The tokens of the call, until one of them is refused: the caller gets others.
    tokens: Option<UpstreamTokens>,
    /// The spans of this node, which end with the reply.
    _spans: Vec<Span>,
}

impl EncodedReply {
    pub(super) fn new(reply: LocalReply, format: Format, tokens: Option<UpstreamTokens>) -> Self {
        Self { reply, format, encoding: None, has_begun: false, tokens, _spans: Vec::new() }
    }

    /// What the next event says beside itself.
    fn about(&mut self) -> About {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let handshake = self.reply.handshake().filter(|_| is_first).cloned();
        let refused = self.tokens.iter().flat_map(UpstreamTokens::refused);
        let refused: Vec<_> = refused.map(|token| token.backend.to_string()).collect();
        if !refused.is_empty() {
            self.tokens = None;
        }
        About { handshake, refused }
    }

    pub(super) fn within(self, spans: Vec<Span>) -> Self {
        Self { _spans: spans, ..self }
    }
}

impl Replies for EncodedReply {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Reply {
        loop {
            if let Some(encoding) = &mut self.encoding {
                let encoded = ready!(Pin::new(encoding).poll(context));
                self.encoding = None;
                return Poll::Ready(Some(Ok(encoded)));
            }
            let Some(event) = ready!(self.reply.poll_next(context)) else {
                return Poll::Ready(None);
            };
            let (about, format) = (self.about(), self.format);
            if !is_long(bytes_of(&event)) {
                let encoded = reply_codec::encode_about(&event, about, format);
                return Poll::Ready(Some(Ok(encoded)));
            }
            self.encoding = Some(compute(self.reply.tenant(), move || {
                reply_codec::encode_about(&event, about, format)
            }));
        }
    }

    fn is_over(&self) -> bool {
        self.encoding.is_none() && self.reply.is_over()
    }
}

/// The bytes of the messages of an event.
fn bytes_of(event: &ReplyEvent) -> usize {
    match event {
        ReplyEvent::Answer(answer) => answer.bytes(),
        ReplyEvent::Frame(Frame::Message { data, .. }) => data.len(),
        _ => 0,
    }
}

/// Spawns work that is aborted when the peer no longer waits for it.
pub(super) fn spawn<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> AbortOnDropHandle<Result<T, Refusal>> {
    AbortOnDropHandle::new(tokio::spawn(Spanned::of_current(Box::pin(work))))
}

/// The reply to a peer's request to claim a session: [`Answer::Nothing`] once the session is here.
/// Dropping this ends the wait; the claim continues in a task of its own.
struct RequestedClaim(Option<AbortOnDropHandle<Result<(), Refusal>>>, Format);

impl Replies for RequestedClaim {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Reply {
        let Some(finding) = &mut self.0 else { return Poll::Ready(None) };
        let answer = match outcome(ready!(Pin::new(finding).poll(context))) {
            Ok(()) => Answer::Nothing,
            // The caller repeats the request.
            Err(Refusal::Unavailable | Refusal::Stopping) => Answer::Refused(Refusal::Moved),
            Err(refusal) => Answer::Refused(refusal),
        };
        self.0 = None;
        Poll::Ready(Some(Ok(reply_codec::encode(&ReplyEvent::Answer(answer), self.1))))
    }

    fn is_over(&self) -> bool {
        self.0.is_none()
    }
}

/// The result of the spawned task; a panic was already logged and becomes `Unavailable`.
pub(super) fn outcome<T>(joined: Result<Result<T, Refusal>, JoinError>) -> Result<T, Refusal> {
    joined.unwrap_or(Err(Refusal::Unavailable))
}

/// One reply, if there is any.
struct OneReply(Option<Bytes>);

impl Replies for OneReply {
    fn poll_next(&mut self, _context: &mut Context<'_>) -> Reply {
        Poll::Ready(self.0.take().map(Ok))
    }

    fn is_over(&self) -> bool {
        self.0.is_none()
    }
}

/// A reply that refuses a call.
struct Refused(Option<Refusal>, Format);

impl Replies for Refused {
    fn poll_next(&mut self, _context: &mut Context<'_>) -> Reply {
        let refused =
            |refusal| reply_codec::encode(&ReplyEvent::Answer(Answer::Refused(refusal)), self.1);
        Poll::Ready(self.0.take().map(refused).map(Ok))
    }

    fn is_over(&self) -> bool {
        self.0.is_none()
    }
}

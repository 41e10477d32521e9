//! What this node does with the calls of its peers: as its own front would, for sessions
//! that live here. A call that its sender asks it to pass on goes to the owner that the sender
//! named, over a link that is there, and never further.

use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use cluster::{CallError, Calling, Replies, Serve};
use conversation::{Answer, Refusal};
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

use super::Call;
use super::call::Relayed;
use super::opening::Opening;
use super::reply_codec;
use crate::ReplyEvent;
use crate::handle::{Entry, Node};
use crate::metrics;
use crate::reply_stream::Local;
use crate::seeking::Place;

/// Serves peers for as long as the node's sessions are there.
pub(crate) struct Serving(pub(crate) Weak<Node>);

impl Serve for Serving {
    fn serve(&self, call: Bytes) -> Option<Box<dyn Replies>> {
        let node = self.0.upgrade()?;
        if let Some(opening) = Opening::decode(call.clone()) {
            metrics::SERVED.inc();
            return Some(opening.serve(&node));
        }
        if let Some(Relayed { owner, call }) = Relayed::decode(call.clone()) {
            let peer = node.cluster()?.reachable(owner)?;
            metrics::RELAYED.inc();
            return Some(Box::new(Relaying(peer.call(call))));
        }
        let Some(call) = Call::decode(call) else {
            tracing::error!("a peer called in a way that this version does not understand");
            return Some(Box::new(Refused(Some(Refusal::Unavailable))));
        };
        let Call { tenant, principal, session, request } = call;
        let replies: Box<dyn Replies> = match request {
            Some(request) => match node.enter(&tenant, &principal, &session, request, true) {
                Entry::Entered(local) => Box::new(Telling(local)),
                // Nothing was done; the caller looks again where it is.
                Entry::Refused(Refusal::Moved) | Entry::Absent => return None,
                Entry::Refused(refusal) => Box::new(Refused(Some(refusal))),
            },
            // A task on the runtime of the peer links: the thread that writes to the peer polls
            // for the result, and it may be any thread.
            None => Box::new(TakingUp(Some(spawn(async move {
                match node.seek(&tenant, &principal, &session, true).await? {
                    Place::Here => Ok(()),
                    // The caller finds it there itself.
                    Place::There(_) | Place::Nowhere => Err(Refusal::Moved),
                    // The caller asks another.
                    Place::Full => Err(Refusal::TooManySessions),
                    Place::Gone => Err(Refusal::UnknownSession),
                }
            })))),
        };
        metrics::SERVED.inc();
        Some(replies)
    }

    fn load(&self) -> u64 {
        self.0.upgrade().map_or(0, |node| node.registry.sessions() as u64)
    }
}

type Reply = Poll<Option<Result<Bytes, CallError>>>;

/// A call that is passed on to the owner of its session. It is read only as fast as its caller
/// takes replies, so that at most a window of them waits here; dropped, it cancels the call at
/// the owner.
struct Relaying(Calling);

impl Replies for Relaying {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Reply {
        self.0.poll_next(context)
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

/// What a connection of a peer's is told.
struct Telling(Local);

impl Replies for Telling {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Reply {
        let event = ready!(self.0.poll_next(context));
        Poll::Ready(event.as_ref().map(reply_codec::encode).map(Ok))
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

/// Goes on for as long as the peer waits for it.
pub(super) fn spawn<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> AbortOnDropHandle<Result<T, Refusal>> {
    AbortOnDropHandle::new(tokio::spawn(work))
}

/// A session that a peer asks this node to take up. The answer is [`Answer::Nothing`] once it is
/// here. Dropping this ends the wait; the claim itself is a task of its own.
struct TakingUp(Option<AbortOnDropHandle<Result<(), Refusal>>>);

impl Replies for TakingUp {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Reply {
        let Some(seeking) = &mut self.0 else { return Poll::Ready(None) };
        let answer = match ended(ready!(Pin::new(seeking).poll(context))) {
            Ok(()) => Answer::Nothing,
            // What could not be found out now is asked for again.
            Err(Refusal::Unavailable | Refusal::Stopping) => Answer::Refused(Refusal::Moved),
            Err(refusal) => Answer::Refused(refusal),
        };
        self.0 = None;
        Poll::Ready(Some(Ok(reply_codec::encode(&ReplyEvent::Answer(answer)))))
    }

    fn is_over(&self) -> bool {
        self.0.is_none()
    }
}

/// What came of what a peer waits for. Where it panicked, that was told.
pub(super) fn ended<T>(ended: Result<Result<T, Refusal>, JoinError>) -> Result<T, Refusal> {
    ended.unwrap_or(Err(Refusal::Unavailable))
}

/// Why it is told nothing.
struct Refused(Option<Refusal>);

impl Replies for Refused {
    fn poll_next(&mut self, _context: &mut Context<'_>) -> Reply {
        let refused = |refusal| reply_codec::encode(&ReplyEvent::Answer(Answer::Refused(refusal)));
        Poll::Ready(self.0.take().map(refused).map(Ok))
    }

    fn is_over(&self) -> bool {
        self.0.is_none()
    }
}

//! What this node does with the calls of its peers: as its own front would, for sessions
//! that live here, and never a second hop.

use std::sync::Weak;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use cluster::{Replies, Serve};
use conversation::{Answer, Refusal};

use super::Call;
use super::told;
use crate::Told;
use crate::handle::{Entry, Node};
use crate::inflow::Local;
use crate::metrics;

/// Serves peers for as long as the node's sessions are there.
pub(crate) struct Serving(pub(crate) Weak<Node>);

impl Serve for Serving {
    fn serve(&self, call: Bytes) -> Option<Box<dyn Replies>> {
        let node = self.0.upgrade()?;
        let Some(call) = Call::decode(call) else {
            tracing::error!("a peer called in a way that this version does not understand");
            return Some(Box::new(Refused(Some(Refusal::Unavailable))));
        };
        let replies: Box<dyn Replies> =
            match node.enter(&call.tenant, &call.principal, &call.session, call.errand) {
                Entry::Entered(local) => Box::new(Telling(local)),
                Entry::Refused(refusal) => Box::new(Refused(Some(refusal))),
                // The caller looks again where it is.
                Entry::Absent(_) => return None,
            };
        metrics::SERVED.inc();
        Some(replies)
    }
}

/// What a connection of a peer's is told.
struct Telling(Local);

impl Replies for Telling {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let told = ready!(self.0.poll_next(context));
        Poll::Ready(told.as_ref().map(told::encode))
    }
}

/// Why it is told nothing.
struct Refused(Option<Refusal>);

impl Replies for Refused {
    fn poll_next(&mut self, _context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let refused = |refusal| told::encode(&Told::Answer(Answer::Refused(refusal)));
        Poll::Ready(self.0.take().map(refused))
    }
}

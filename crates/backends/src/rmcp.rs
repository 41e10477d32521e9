//! MCP servers written with the `rmcp` crate that run inside the node.
//!
//! Between a session and such a server no JSON text is written twice and no socket or
//! task stands: a message is read straight into `rmcp`'s types, the service's futures
//! run where the link is polled, and what the service says is written once.
//! `rmcp`'s own loop runs only behind the [`Peer`]s it hands out, since there is no
//! other way to make one; see [`peer_loop`].
//!
//! [`Peer`]: ::rmcp::Peer

mod engine;
mod peer_loop;
mod read;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};

use ::rmcp::{RoleServer, Service};
use protocol::SessionId;

use crate::link::{Engine, EventReceiver};
use crate::{Backend, Link, LinkEvent, LinkLimits, ServerEnd, metrics};

/// Most requests of one session that a service works on at a time, those included that
/// were cancelled and do not stop. A further one is answered with an error.
pub const CALLS_MAX: usize = 128;

/// Serves an `rmcp` service to every session that opens a link, each its own instance.
///
/// The service speaks for the revisions it supports; what it answers to `initialize`
/// is what `rmcp` itself would answer. Its futures run on the session's thread, so what
/// blocks or computes for long belongs on a thread of its own. A cancelled request's
/// token is cancelled and its answer dropped. When the session is over, its futures are
/// dropped and all tokens cancelled. A panic is answered with -32603 and harms no other
/// call.
///
/// ```
/// use backends::rmcp::RmcpBackend;
///
/// struct Greeter;
/// impl rmcp::ServerHandler for Greeter {}
///
/// let backend = RmcpBackend::new(|_session| Greeter);
/// ```
#[derive(Clone)]
pub struct RmcpBackend {
    make: Arc<Make>,
    limits: LinkLimits,
}

type Make = dyn Fn(&SessionId, ServerEnd, EventReceiver) -> Box<dyn Engine> + Send + Sync;

impl RmcpBackend {
    /// A backend whose sessions are served by what the factory makes.
    pub fn new<S: Service<RoleServer>>(
        factory: impl Fn(&SessionId) -> S + Send + Sync + 'static,
    ) -> Self {
        let make = move |session: &SessionId,
                         end: ServerEnd,
                         receiver: EventReceiver|
              -> Box<dyn Engine> {
            match catch_unwind(AssertUnwindSafe(|| factory(session))) {
                Ok(service) => Box::new(engine::InPlace::new(service, end, receiver)),
                Err(_) => Box::new(Unmade::new(&end, receiver)),
            }
        };
        Self { make: Arc::new(make), limits: LinkLimits::default() }
    }

    /// The same with other bounds of its links.
    pub fn with_limits(mut self, limits: LinkLimits) -> Self {
        self.limits = limits;
        self
    }
}

impl Backend for RmcpBackend {
    fn open(&self, session: &SessionId) -> Link {
        Link::in_place(self.limits, |end, receiver| (self.make)(session, end, receiver))
    }
}

/// A link whose service could not be made.
struct Unmade(EventReceiver);

impl Unmade {
    fn new(end: &ServerEnd, receiver: EventReceiver) -> Self {
        metrics::NATIVE_PANICS.inc();
        tracing::error!("the factory of an rmcp service panicked");
        end.sender().down("the server could not be started");
        Self(receiver)
    }
}

impl Engine for Unmade {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        self.0.poll_next(context)
    }
}

#[cfg(test)]
mod tests;

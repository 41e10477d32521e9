//! MCP servers written with the `rmcp` crate that run inside the node.
//!
//! A message is decoded directly into `rmcp`'s types, and a message of the service is encoded
//! once. The service's futures run while the link is polled, without a socket or a task.
//! `rmcp`'s own loop runs only behind the [`Peer`]s, since `rmcp` creates a peer only with a
//! loop; see [`peer_loop`].
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

/// Maximum number of concurrent requests of one session, including cancelled ones that still run.
/// A further one is answered with an error.
pub const CALLS_MAX: usize = 128;

/// Serves an `rmcp` service to every session that opens a link. Each session has an instance.
///
/// The service states the revisions that it supports; the answer to `initialize` is the one
/// that `rmcp` itself would give. The futures run on the session's thread, so blocking or long
/// work belongs on another thread. A cancelled request's token is cancelled and its response is
/// dropped. When the session ends, its futures are dropped and all tokens are cancelled. A panic
/// is answered with -32603 and does not affect other calls. Other threads poll the future for a request of more than
/// 64 KiB, outside of the session's `LocalSet`: use `tokio::spawn` and not `tokio::task::spawn_local`, which panics
/// there.
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
    /// Creates a backend that calls the factory for the service of each session.
    pub fn new<S: Service<RoleServer>>(
        factory: impl Fn(&SessionId) -> S + Send + Sync + 'static,
    ) -> Self {
        let make = move |session: &SessionId,
                         end: ServerEnd,
                         receiver: EventReceiver|
              -> Box<dyn Engine> {
            match catch_unwind(AssertUnwindSafe(|| factory(session))) {
                Ok(service) => Box::new(engine::InPlace::new(service, end, receiver)),
                Err(_) => Box::new(FailedLink::new(&end, receiver)),
            }
        };
        Self { make: Arc::new(make), limits: LinkLimits::default() }
    }

    /// Sets the bounds of the links.
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

/// A link whose service could not be created.
struct FailedLink(EventReceiver);

impl FailedLink {
    fn new(end: &ServerEnd, receiver: EventReceiver) -> Self {
        metrics::NATIVE_PANICS.inc();
        tracing::error!("factory of an rmcp service panicked; the link of the session is down");
        end.sender().down("the server could not be started");
        Self(receiver)
    }
}

impl Engine for FailedLink {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        self.0.poll_next(context)
    }
}

#[cfg(test)]
mod tests;

//! A long call of a peer. Another thread parses its message, since that takes milliseconds, in which the
//! links of peers would carry nothing else. Nodes of the version before send calls that are parsed at once.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use budget::Held;
use bytes::Bytes;
use cluster::{CallError, Replies};
use fairness::{Computing, compute, is_long};
use tokio::runtime::Handle;

use super::{Format, messages};
use crate::node::Node;
use crate::session_bytes::charge;

/// Begins what a call demands. `None`: nothing was begun.
type Begin<T> = fn(&Arc<Node>, T, Format) -> Option<Box<dyn Replies>>;

/// The replies to a long call. Dropping this before the message is parsed starts nothing.
pub(super) struct LongCall<T> {
    node: Weak<Node>,
    format: Format,
    begin: Begin<T>,
    /// The runtime of the peer links.
    runtime: Handle,
    state: State<T>,
}

enum State<T> {
    /// With the charge for the bytes of the call, until its session charges them.
    Reading(Computing<(T, Option<Held>)>),
    Begun(Box<dyn Replies>),
    NotStarted,
}

impl<T: Send + 'static> LongCall<T> {
    /// Has `read` parse the call if it is long, and is about a session. Then `begin` gets it.
    pub(super) fn new(
        node: &Arc<Node>,
        call: &Bytes,
        format: Format,
        read: fn(Bytes) -> T,
        begin: Begin<T>,
    ) -> Option<Self> {
        if !is_long(call.len()) || format == Format::Legacy {
            return None;
        }
        let tenant = messages::tenant_of(call)?;
        let share = node.context.session_bytes.share_of_session(&tenant);
        let (unread, held) = (call.clone(), charge(call.len(), &share));
        let state = State::Reading(compute(&tenant, move || (read(unread), held)));
        Some(Self { node: Arc::downgrade(node), format, begin, runtime: Handle::current(), state })
    }
}

impl<T: Send + 'static> Replies for LongCall<T> {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        if let State::Reading(reading) = &mut self.state {
            let (call, held) = ready!(Pin::new(reading).poll(context));
            drop(held);
            let _within = self.runtime.enter();
            let node = self.node.upgrade();
            let begun = node.and_then(|node| (self.begin)(&node, call, self.format));
            self.state = begun.map_or(State::NotStarted, State::Begun);
        }
        match &mut self.state {
            State::Begun(replies) => replies.poll_next(context),
            State::Reading(_) | State::NotStarted => Poll::Ready(Some(Err(CallError::NotStarted))),
        }
    }

    fn is_over(&self) -> bool {
        match &self.state {
            State::Reading(_) => false,
            State::Begun(replies) => replies.is_over(),
            State::NotStarted => true,
        }
    }
}

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

use super::forwarded_request::Received;
use super::serving::begin_replies;
use super::{Format, messages};
use crate::node::Node;
use crate::session_bytes::charge;

/// The replies to a long call. Dropping this before the message is parsed starts nothing.
pub(super) struct LongCall {
    node: Weak<Node>,
    format: Format,
    /// The runtime of the peer links.
    runtime: Handle,
    state: State,
}

enum State {
    /// With the charge for the bytes of the call, which its session takes over.
    Reading(Computing<(Option<Received>, Option<Held>)>),
    Begun(Box<dyn Replies>),
    NotStarted,
}

impl LongCall {
    /// Begins to read the call if it is long, and is about a session.
    pub(super) fn read(node: &Arc<Node>, call: &Bytes, format: Format) -> Option<Self> {
        if !is_long(call.len()) || format == Format::Legacy {
            return None;
        }
        let tenant = messages::tenant_of(call)?;
        let share = node.context.session_bytes.share_of_session(&tenant);
        let (received, held) = (call.clone(), charge(call.len(), &share));
        let reading = compute(&tenant, move || (Received::decode(received), held));
        let (node, runtime) = (Arc::downgrade(node), Handle::current());
        Some(Self { node, format, runtime, state: State::Reading(reading) })
    }
}

impl Replies for LongCall {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        if let State::Reading(reading) = &mut self.state {
            let (received, held) = ready!(Pin::new(reading).poll(context));
            drop(held);
            let _within = self.runtime.enter();
            let node = self.node.upgrade();
            let begun = node.and_then(|node| begin_replies(&node, received, self.format));
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

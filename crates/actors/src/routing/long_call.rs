//! A long call of a peer. Another thread parses its message, since that takes milliseconds, in which the
//! links of peers would carry nothing else.

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
    Reading {
        reading: Computing<Option<Received>>,
        /// The bytes of the call, which are charged to its tenant.
        _held: Option<Held>,
    },
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
        let received = call.clone();
        let reading = compute(&tenant, move || Received::decode(received));
        let (node, runtime) = (Arc::downgrade(node), Handle::current());
        Some(Self {
            node,
            format,
            runtime,
            state: State::Reading { reading, _held: charge(call.len(), &share) },
        })
    }
}

impl Replies for LongCall {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        if let State::Reading { reading, .. } = &mut self.state {
            let received = ready!(Pin::new(reading).poll(context));
            let _within = self.runtime.enter();
            let node = self.node.upgrade();
            let begun = node.and_then(|node| begin_replies(&node, received, self.format));
            self.state = begun.map_or(State::NotStarted, State::Begun);
        }
        match &mut self.state {
            State::Begun(replies) => replies.poll_next(context),
            State::Reading { .. } | State::NotStarted => {
                Poll::Ready(Some(Err(CallError::NotStarted)))
            }
        }
    }

    fn is_over(&self) -> bool {
        match &self.state {
            State::Reading { .. } => false,
            State::Begun(replies) => replies.is_over(),
            State::NotStarted => true,
        }
    }
}

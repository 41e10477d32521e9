//! The calls of one peer, on the node that answers them.
//!
//! Calls are polled only when they have something to tell and their caller has credit,
//! and take turns. Nothing here ever waits for one call.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use bytes::BytesMut;

use super::frame::{Credit, Kind, Open, Reply};
use super::line::Party;
use crate::Replies;
use crate::bell::{self, Speaks};
use crate::node::Node;

/// Refusals that a peer does not take, at most. An honest one has fewer calls under way.
const REFUSED_MAX: usize = 1 << 20;

/// One peer's calls, and what is to be told of them.
pub(crate) struct Answering {
    node: Arc<Node>,
    state: Mutex<State>,
    ready: Arc<Ready>,
}

#[derive(Default)]
struct State {
    /// Calls that were not started, and whose caller is to know.
    refused: VecDeque<u64>,
    /// At most `calls_max`.
    calls: HashMap<u64, Call>,
}

struct Call {
    replies: Box<dyn Replies>,
    credit: u32,
    wakes: Arc<Wakes>,
    waker: Waker,
}

/// The calls that may have something to tell.
struct Ready {
    /// Each call at most once, since [`Wakes::queued`] says so. None after the line's end.
    calls: Mutex<Option<VecDeque<Arc<Wakes>>>>,
    /// What they tell goes over this.
    line: Weak<dyn Speaks>,
}

/// Wakes one call.
struct Wakes {
    id: u64,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Answering {
    /// What calls have to tell goes over this line.
    pub(crate) fn new(node: Arc<Node>, line: Weak<dyn Speaks>) -> Self {
        let ready = Arc::new(Ready { calls: Mutex::new(Some(VecDeque::new())), line });
        Self { node, state: Mutex::default(), ready }
    }

    /// The line has ended, and every call with it.
    pub(crate) fn end(&self) {
        self.ready.calls().take();
        let ended = mem::take(&mut *self.state());
        // Not under the lock.
        drop(ended);
    }

    fn open(&self, Open { id, window, body }: Open) -> bool {
        let state = self.state();
        let full = state.calls.len() >= self.node.settings.calls_max;
        let takes = !full && !self.node.right.is_given_up() && !state.calls.contains_key(&id);
        drop(state);
        let replies = if takes { self.node.serve.serve(body) } else { None };
        let mut state = self.state();
        let Some(replies) = replies else {
            state.refused.push_back(id);
            return state.refused.len() <= REFUSED_MAX;
        };
        let queued = AtomicBool::new(false);
        let wakes = Arc::new(Wakes { id, queued, ready: self.ready.clone() });
        wakes.queue();
        let credit = window.min(self.node.settings.window);
        let waker = Waker::from(wakes.clone());
        state.calls.insert(id, Call { replies, credit, wakes, waker });
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The next thing that some call has to tell, and the call where it is over.
    fn next(&mut self, ready: &Ready, message_bytes_max: usize) -> Option<(Kind, Option<Call>)> {
        if let Some(id) = self.refused.pop_front() {
            return Some((Kind::NotStarted(id), None));
        }
        loop {
            let wakes = ready.calls().as_mut()?.pop_front()?;
            // Before the call is asked, so that what comes while it is asked wakes it again.
            wakes.queued.store(false, Ordering::Release);
            // A call that was cancelled, or waits for credit, has no turn.
            let Some(call) = self.calls.get_mut(&wakes.id) else { continue };
            if call.credit == 0 {
                continue;
            }
            let mut context = Context::from_waker(&call.waker);
            let kind = match call.replies.poll_next(&mut context) {
                Poll::Pending => continue,
                Poll::Ready(Some(body)) if body.len() <= message_bytes_max => {
                    let last = call.replies.is_over();
                    let reply = Kind::Reply(Reply { id: wakes.id, body, last });
                    if last {
                        return Some((reply, self.calls.remove(&wakes.id)));
                    }
                    call.credit -= 1;
                    wakes.queue();
                    return Some((reply, None));
                }
                Poll::Ready(Some(body)) => {
                    tracing::warn!(
                        bytes = body.len(),
                        "a reply to a peer is larger than cluster.message_bytes_max"
                    );
                    Kind::Failed(wakes.id)
                }
                Poll::Ready(None) => Kind::End(wakes.id),
            };
            return Some((kind, self.calls.remove(&wakes.id)));
        }
    }
}

impl Party for Answering {
    fn take(&self, kind: Kind) -> bool {
        match kind {
            Kind::Open(open) => return self.open(open),
            Kind::Cancel(id) => {
                let call = self.state().calls.remove(&id);
                // Not under the lock.
                drop(call);
            }
            Kind::Credit(Credit { id, more }) => {
                // A call that is not there ended before its caller knew.
                if let Some(call) = self.state().calls.get_mut(&id) {
                    call.credit = call.credit.saturating_add(more);
                    call.wakes.queue();
                }
            }
            _ => return false,
        }
        true
    }

    fn say(&self, out: &mut BytesMut, enough_bytes: usize) {
        let message_bytes_max = self.node.settings.message_bytes_max;
        while out.len() < enough_bytes {
            let next = self.state().next(&self.ready, message_bytes_max);
            let Some((kind, ended)) = next else { return };
            kind.say(out);
            // Not under the lock.
            drop(ended);
        }
    }
}

impl Ready {
    fn calls(&self) -> MutexGuard<'_, Option<VecDeque<Arc<Wakes>>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wakes {
    fn queue(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel)
            && let Some(calls) = &mut *self.ready.calls()
        {
            calls.push_back(self.clone());
        }
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.queue();
        if let Some(line) = self.ready.line.upgrade() {
            bell::ring_for(&line);
        }
    }
}

//! The calls of one peer, on the node that answers them: frames in, frames out.
//!
//! Calls are polled only when they have something to tell and their caller has credit,
//! and take turns. Nothing here ever waits for one call.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::Stream;
use futures_util::task::AtomicWaker;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;

use super::frame::{Credit, Frame, Greeting, Kind, Open, Reply};
use super::guests::Visit;
use super::proof::{self, Role};
use crate::node::Node;
use crate::peers::Linked;
use crate::{Incarnation, Replies, bell, metrics};

/// So many frames are taken before calls have their turn again.
const TAKEN_IN_A_ROW: usize = 64;

/// The replies to one peer's calls, as a stream of frames.
pub(crate) struct Answering<I> {
    node: Arc<Node>,
    visit: Visit,
    incoming: Pin<Box<I>>,
    meeting: Meeting,
    /// What to say before anything else: answers to frames just taken. As many at most
    /// as are taken in a row.
    outgoing: VecDeque<Frame>,
    /// At most `calls_max`.
    calls: HashMap<u64, Call>,
    ready: Arc<Ready>,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// How far the two have come to know each other.
enum Meeting {
    /// Until then a peer has to prove itself.
    Unproven { until: Pin<Box<Sleep>>, greetings: Option<(Greeting, Greeting)> },
    /// It has. The link counts as live.
    Proven(#[allow(dead_code, reason = "ends with the link")] Linked),
}

struct Call {
    replies: Box<dyn Replies>,
    credit: u32,
    wakes: Arc<Wakes>,
    waker: Waker,
}

/// The calls that may have something to tell.
#[derive(Default)]
struct Ready {
    /// Each call at most once, since [`Wakes::queued`] says so.
    calls: Mutex<VecDeque<Arc<Wakes>>>,
    link: AtomicWaker,
}

/// Wakes one call.
struct Wakes {
    id: u64,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl<I> Answering<I>
where
    I: Stream<Item = Result<Frame, Status>> + Send,
{
    pub(crate) fn new(
        node: Arc<Node>,
        visit: Visit,
        incoming: I,
        closing: &CancellationToken,
    ) -> Self {
        let until = Box::pin(sleep(node.settings.connect()));
        Self {
            node,
            visit,
            incoming: Box::pin(incoming),
            meeting: Meeting::Unproven { until, greetings: None },
            outgoing: VecDeque::new(),
            calls: HashMap::new(),
            ready: Arc::default(),
            closing: Box::pin(closing.clone().cancelled_owned()),
        }
    }

    /// What the peer has said so far. `None`: it said its last.
    fn take_frames(&mut self, context: &mut Context<'_>) -> Result<Option<()>, Status> {
        for _ in 0..TAKEN_IN_A_ROW {
            match self.incoming.as_mut().poll_next(context) {
                Poll::Pending => return Ok(Some(())),
                Poll::Ready(None) => return Ok(None),
                Poll::Ready(Some(frame)) => self.take(frame?)?,
            }
        }
        // There may be more; the others first.
        context.waker().wake_by_ref();
        Ok(Some(()))
    }

    fn take(&mut self, frame: Frame) -> Result<(), Status> {
        // A kind that is not known here comes from a newer node.
        let Some(kind) = frame.kind else { return Ok(()) };
        if let Meeting::Unproven { greetings, .. } = &mut self.meeting {
            let proven = meet(&self.node, greetings, kind, &mut self.outgoing)?;
            if let Some(peer) = proven {
                self.visit.admit();
                let linked = Linked::new(&self.node, peer, self.visit.fate().clone());
                self.meeting = Meeting::Proven(linked);
            }
            return Ok(());
        }
        match kind {
            Kind::Open(open) => self.open(open),
            Kind::Cancel(id) => {
                self.calls.remove(&id);
            }
            Kind::Credit(Credit { id, more }) => {
                // A call that is not there ended before its caller knew.
                if let Some(call) = self.calls.get_mut(&id) {
                    call.credit = call.credit.saturating_add(more);
                    call.wakes.queue();
                }
            }
            _ => return Err(Status::invalid_argument("a caller does not say that")),
        }
        Ok(())
    }

    fn open(&mut self, Open { id, window, body }: Open) {
        let full = self.calls.len() >= self.node.settings.calls_max;
        let takes = !full && !self.node.right.is_given_up() && !self.calls.contains_key(&id);
        let replies = if takes { self.node.serve.serve(body) } else { None };
        let Some(replies) = replies else {
            self.outgoing.push_back(Kind::NotStarted(id).into());
            return;
        };
        let queued = AtomicBool::new(false);
        let wakes = Arc::new(Wakes { id, queued, ready: self.ready.clone() });
        wakes.queue();
        let credit = window.min(self.node.settings.window);
        let waker = Waker::from(wakes.clone());
        self.calls.insert(id, Call { replies, credit, wakes, waker });
    }

    /// The next thing that some call has to tell.
    fn next_reply(&mut self) -> Option<Frame> {
        loop {
            let wakes = self.ready.calls().pop_front()?;
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
                Poll::Ready(Some(body)) if body.len() <= self.node.settings.message_bytes_max => {
                    let last = call.replies.is_over();
                    if last {
                        self.calls.remove(&wakes.id);
                    } else {
                        call.credit -= 1;
                        call.wakes.queue();
                    }
                    return Some(Kind::Reply(Reply { id: wakes.id, body, last }).into());
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
            self.calls.remove(&wakes.id);
            return Some(kind.into());
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame, Status>>> {
        self.ready.link.register(context.waker());
        if self.closing.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        if self.outgoing.is_empty() {
            match self.take_frames(context) {
                Ok(Some(())) => {}
                Ok(None) => return Poll::Ready(None),
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
        }
        if let Meeting::Unproven { until, .. } = &mut self.meeting
            && until.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Some(Err(Status::deadline_exceeded("no proof came in time"))));
        }
        let next = self.outgoing.pop_front().or_else(|| self.next_reply());
        next.map_or(Poll::Pending, |frame| Poll::Ready(Some(Ok(frame))))
    }
}

/// After an error, or the end, this is not asked again, and is dropped with all calls.
impl<I> Stream for Answering<I>
where
    I: Stream<Item = Result<Frame, Status>> + Send,
{
    type Item = Result<Frame, Status>;

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame, Status>>> {
        self.get_mut().poll(context)
    }
}

/// A step of the handshake. Answers who the peer is when it has proven itself.
fn meet(
    node: &Arc<Node>,
    greetings: &mut Option<(Greeting, Greeting)>,
    kind: Kind,
    outgoing: &mut VecDeque<Frame>,
) -> Result<Option<Incarnation>, Status> {
    match (kind, greetings.as_ref()) {
        (Kind::Hello(caller), None) => {
            let nonce = super::nonce().map_err(|_| Status::internal("no random bits"))?;
            let callee = Greeting { incarnation: node.incarnation.0, nonce };
            outgoing.push_back(Kind::Challenge(callee.clone()).into());
            *greetings = Some((caller, callee));
            Ok(None)
        }
        (Kind::Proof(proof), Some((caller, callee))) => {
            let secret = &node.settings.secret;
            if !proof::holds(&proof, secret, Role::Caller, caller, callee) {
                metrics::LINKS_REFUSED.inc();
                tracing::warn!("refused a peer that does not know the cluster's secret");
                return Err(Status::unauthenticated("that proves nothing"));
            }
            let welcome = proof::prove(secret, Role::Callee, caller, callee);
            outgoing.push_back(Kind::Welcome(welcome).into());
            Ok(Some(Incarnation(caller.incarnation)))
        }
        _ => Err(Status::unauthenticated("prove yourself first")),
    }
}

impl Ready {
    fn calls(&self) -> MutexGuard<'_, VecDeque<Arc<Wakes>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wakes {
    fn queue(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready.calls().push_back(self.clone());
        }
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.queue();
        if let Some(link) = self.ready.link.take() {
            bell::ring(link);
        }
    }
}

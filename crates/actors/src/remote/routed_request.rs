//! One client's connection, for as long as the client keeps it open: whichever node owns the
//! session, and however often the owner changes.
//!
//! This file only waits and forwards; [`RouteState`] decides the next step.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use cluster::{CallError, Calling, Cluster, Peer};
use conversation::Refusal;

use super::{Call, SessionRequest, reply_codec};
use crate::clock;
use crate::handle::{Entry, Node};
use crate::held::Held;
use crate::metrics::{self, Hold, Hop};
use crate::reply_stream::Local;
use crate::seeking::Place;
use crate::{Caller, ReplyEvent};
use ownership::retry::{Retry, Wait};
use ownership::route::{Asked, Next, RouteState, is_progress};

/// How long a call goes on by itself whose client left before the owner had said anything,
/// so that it arrives although its owner may just be changing: longer than it takes to find
/// out that a process was killed.
const LINGER: Duration = Duration::from_secs(5);

/// What a client is told to wait before it comes back to another node, in milliseconds.
const RETRY_MS: std::ops::RangeInclusive<u32> = 500..=1_500;

type Seeking = Pin<Box<dyn Future<Output = Result<Place, Refusal>> + Send>>;
type Leaving = Pin<Box<dyn Future<Output = ()> + Send>>;
type Pause = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A client's connection on its way. Dropping it tells the owner that the client is gone;
/// what the client had posted arrives all the same.
pub(crate) struct RoutedRequest {
    node: Arc<Node>,
    caller: Caller,
    route: RouteState,
    state: State,
    /// What is left to tell; then it is over.
    rest: VecDeque<ReplyEvent>,
    /// It holds its client's request.
    held: Option<Held>,
    retry: Retry,
    /// How many peers had been found dead when the session was last looked for.
    deaths: u64,
    /// Ready when the node leaves. Made when the connection becomes a stream.
    leaving: Option<Leaving>,
    /// Its client has left; it goes on for a moment.
    lingers: bool,
}

enum State {
    Seeking(Seeking),
    Waiting(Pause),
    Here(Local),
    There(Calling),
    /// A peer is asked to take the session up; then it gets the call.
    Asking(Calling, Peer),
    /// Only the rest is told.
    Over,
}

impl RoutedRequest {
    /// Asks the session, if it is here at once, or begins to look for it.
    pub(crate) fn begin(node: &Arc<Node>, caller: &Caller, request: SessionRequest) -> Self {
        let route = RouteState::new(request);
        let mut routed = Self::new(node, caller.clone(), route, State::Over);
        routed.enter(false);
        routed
    }

    /// Goes on with a call that has opened the session.
    pub(super) fn of_new_session(
        node: &Arc<Node>,
        caller: Caller,
        request: SessionRequest,
        calling: Calling,
    ) -> Self {
        Self::new(node, caller, RouteState::of_new_session(request), State::There(calling))
    }

    /// Goes on with a call that has opened a session of one connection, this one.
    pub(super) fn of_duplex(node: &Arc<Node>, caller: Caller, calling: Calling) -> Self {
        Self::new(node, caller, RouteState::of_duplex(), State::There(calling))
    }

    fn new(node: &Arc<Node>, caller: Caller, route: RouteState, state: State) -> Self {
        Self {
            node: Arc::clone(node),
            caller,
            route,
            state,
            rest: VecDeque::new(),
            held: None,
            retry: Retry::new(),
            deaths: 0,
            leaving: None,
            lingers: false,
        }
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<ReplyEvent>> {
        loop {
            if let Some(event) = self.rest.pop_front() {
                return Poll::Ready(Some(event));
            }
            if self.is_leaving(context) {
                continue;
            }
            let next = match &mut self.state {
                State::Over => return Poll::Ready(None),
                State::Seeking(seeking) => match ready!(seeking.as_mut().poll(context)) {
                    Ok(Place::Here) => {
                        self.enter(true);
                        continue;
                    }
                    Ok(Place::There(peer)) => {
                        // Where the record names a node that said it lacks the session, that
                        // node alone may claim it: the answer to a claim of its own was lost.
                        match self.retry.tries() {
                            0 => self.call(&peer),
                            _ => self.ask(peer),
                        }
                        continue;
                    }
                    Ok(Place::Nowhere) => match self.node.taker(self.retry.tries()) {
                        Some(peer) => {
                            self.ask(peer);
                            continue;
                        }
                        None => Next::Wait,
                    },
                    Ok(Place::Full) => match self.node.roomy_peer(self.retry.tries()) {
                        Some(peer) => {
                            self.ask(peer);
                            continue;
                        }
                        None => self.route.found_no_room(),
                    },
                    Ok(Place::Gone) => self.route.gone(),
                    Err(Refusal::UnknownSession) => self.route.unknown(),
                    Err(_) => Next::Wait,
                },
                State::Waiting(pause) => {
                    ready!(pause.as_mut().poll(context));
                    self.seek();
                    continue;
                }
                State::Here(local) => match ready!(local.poll_next(context)) {
                    Some(event) => {
                        note_going_on(&self.route, &event);
                        self.route.received(event)
                    }
                    None => self.route.ended(),
                },
                State::Asking(calling, peer) => {
                    let answer = ready!(calling.poll_next(context));
                    let peer = peer.clone();
                    let event = answer.and_then(Result::ok).and_then(reply_codec::decode);
                    let answer = match event {
                        Some(ReplyEvent::Answer(answer)) => Some(answer),
                        _ => None,
                    };
                    match self.route.asked(answer) {
                        Asked::IsThere => {
                            self.call(&peer);
                            continue;
                        }
                        Asked::Next(next) => next,
                    }
                }
                State::There(calling) => match ready!(calling.poll_next(context)) {
                    Some(Ok(reply)) => match reply_codec::decode(reply) {
                        Some(event) => {
                            if !self.route.is_open() {
                                metrics::hop(Hop::Answered);
                            }
                            note_going_on(&self.route, &event);
                            self.route.received(event)
                        }
                        None => {
                            tracing::error!("a peer replied what this version does not understand");
                            self.route.lost()
                        }
                    },
                    Some(Err(CallError::NotStarted)) => {
                        metrics::hop(Hop::NotStarted);
                        self.route.not_started()
                    }
                    Some(Err(CallError::Lost)) => {
                        metrics::hop(Hop::Lost);
                        self.route.lost()
                    }
                    Some(Err(CallError::TooLarge { bytes_max })) => {
                        metrics::hop(Hop::TooLarge);
                        self.route.too_large(bytes_max)
                    }
                    None => self.route.ended(),
                },
            };
            if let Some(event) = self.take(next) {
                return Poll::Ready(Some(event));
            }
        }
    }

    /// Does what follows.
    fn take(&mut self, next: Next) -> Option<ReplyEvent> {
        match next {
            Next::Tell(event) => {
                if is_progress(&event) {
                    self.arrived();
                }
                return Some(event);
            }
            Next::Nothing => self.attached(),
            Next::Seek | Next::Wait => self.wait(),
            Next::Last(rest) => {
                self.arrived();
                self.state = State::Over;
                self.rest = rest;
            }
        }
        None
    }

    /// Something passed to the client: nothing is held any more.
    fn arrived(&mut self) {
        self.let_go();
        self.retry.progress();
        if self.leaving.is_none() && self.route.is_open() && self.node.can_leave() {
            self.leaving = Some(self.node.leaving());
        }
    }

    /// An owner has the connection. Whether that brings its client further is yet to be seen.
    fn attached(&mut self) {
        self.let_go();
        self.retry.attached(clock::now().0);
    }

    /// An owner has answered: the request is not held any more.
    fn let_go(&mut self) {
        if self.held.take().is_some() {
            metrics::held(Hold::Reached);
        }
    }

    /// Asks the session on this node.
    fn enter(&mut self, sought: bool) {
        let caller = &self.caller;
        let request = self.route.request().clone();
        let (tenant, principal, session) =
            (&caller.tenant.name, &caller.principal, &caller.session);
        match self.node.enter(tenant, principal, session, request, false) {
            Entry::Entered(local) => self.state = State::Here(local),
            Entry::Refused(
                refusal @ (Refusal::Busy | Refusal::Moved | Refusal::UnknownSession),
            ) => {
                let event = ReplyEvent::Answer(conversation::Answer::Refused(refusal));
                let next = self.route.received(event);
                self.take(next);
            }
            Entry::Refused(refusal) => {
                self.state = State::Over;
                self.rest = self.route.refused(refusal);
            }
            Entry::Absent if sought => self.wait(),
            Entry::Absent => self.seek(),
        }
    }

    /// Sends the request to another node.
    fn call(&mut self, peer: &Peer) {
        self.state = State::There(self.send(peer, Some(self.route.request())));
    }

    /// Asks another node to take the session up. The request stays here meanwhile, so nothing is
    /// lost with that node.
    fn ask(&mut self, peer: Peer) {
        self.state = State::Asking(self.send(&peer, None), peer);
    }

    /// Sends to another node; through a third where that one cannot be reached.
    fn send(&self, peer: &Peer, request: Option<&SessionRequest>) -> Calling {
        match self.node.relay(peer, self.retry.tries()) {
            Some(relay) => {
                metrics::RELAYS.inc();
                relay.call(Call::encode_relayed(&self.caller, request, peer.incarnation()))
            }
            None => peer.call(Call::encode(&self.caller, request)),
        }
    }

    fn seek(&mut self) {
        self.deaths = self.node.cluster().map_or(0, Cluster::deaths);
        let (node, caller) = (Arc::clone(&self.node), self.caller.clone());
        let fresh = self.retry.tries() > 0;
        self.state = State::Seeking(Box::pin(async move {
            node.seek(&caller.tenant.name, &caller.principal, &caller.session, fresh).await
        }));
    }

    /// Looks for the session again, in a moment; or not any more.
    fn wait(&mut self) {
        // What is left of the old owner's is never told.
        self.state = State::Over;
        let hold = self.node.settings.hold();
        let hold_ms = u64::try_from(hold.as_millis()).unwrap_or(u64::MAX);
        let wait = self.retry.next_wait(clock::now().0, hold_ms);
        if self.held.is_none() && self.retry.tries() > 1 {
            self.held = Held::new(&self.node);
            if self.held.is_none() {
                self.rest = self.route.gave_up(0);
                return;
            }
        }
        match wait {
            Wait::Now => self.seek(),
            Wait::After(wait_ms) => {
                self.state = State::Waiting(self.pause(Duration::from_millis(wait_ms)));
            }
            Wait::GiveUp => {
                metrics::held(Hold::Expired);
                self.held = None;
                self.rest = self.route.gave_up(hold.as_secs());
            }
        }
    }

    /// Waits for so long, or until a peer is found dead, which may be the owner; not at all
    /// where one was, while the session was looked for.
    fn pause(&self, wait: Duration) -> Pause {
        let sleep = tokio::time::sleep(wait);
        let Some(cluster) = self.node.cluster() else { return Box::pin(sleep) };
        let death = cluster.another_death(self.deaths);
        Box::pin(async move {
            tokio::select! {
                () = sleep => {}
                () = death => {}
            }
        })
    }

    /// Ends a stream that can be gone on with elsewhere, where this node leaves.
    fn is_leaving(&mut self, context: &mut Context<'_>) -> bool {
        let Some(leaving) = &mut self.leaving else { return false };
        if leaving.as_mut().poll(context).is_pending() {
            return false;
        }
        self.leaving = None;
        let retry = RETRY_MS.start() + jitter() % (RETRY_MS.end() - RETRY_MS.start() + 1);
        let Some(rest) = self.route.leave(retry) else { return false };
        self.state = State::Over;
        self.rest = rest;
        true
    }
}

/// Counts a stream that was open before its present owner had it.
fn note_going_on(route: &RouteState, event: &ReplyEvent) {
    if route.is_open() && matches!(event, ReplyEvent::Open { .. }) {
        metrics::STREAMS_REATTACHED.inc();
    }
}

/// So that clients that are sent away together do not come back together.
fn jitter() -> u32 {
    getrandom::u32().unwrap_or_default()
}

impl Drop for RoutedRequest {
    fn drop(&mut self) {
        let is_over = matches!(self.state, State::Here(_) | State::Over);
        if self.lingers || is_over || !self.route.lingers() {
            return;
        }
        // Outside a runtime nothing can be waited for.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut rest = Self {
            node: Arc::clone(&self.node),
            caller: self.caller.clone(),
            route: std::mem::replace(
                &mut self.route,
                // It is never asked for anything.
                RouteState::new(SessionRequest::Listen { after: None }),
            ),
            state: std::mem::replace(&mut self.state, State::Over),
            rest: VecDeque::new(),
            held: self.held.take(),
            retry: self.retry,
            deaths: self.deaths,
            leaving: None,
            lingers: true,
        };
        // At most as many as the links take calls, each for a moment.
        runtime.spawn(async move {
            let begun = std::future::poll_fn(|context| rest.poll_next(context));
            let _ = tokio::time::timeout(LINGER, begun).await;
        });
    }
}

impl fmt::Debug for RoutedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoutedRequest")
            .field("session", &self.caller.session)
            .finish_non_exhaustive()
    }
}

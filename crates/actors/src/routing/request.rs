//! One client's connection, for as long as the client keeps it open: whichever node owns the
//! session, and however often the owner changes.
//!
//! This file only waits, delivers and forwards; [`RouteState`] decides the next step.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use cluster::{CallError, ForwardedCall, Peer};
use conversation::Refusal;
use ownership::SessionRequest;
use ownership::retry::{Retry, Wait};
use ownership::route::{RouteState, RouteStep, TakeOverAnswer, is_progress};

use super::forwarded_request::ForwardedRequest;
use super::{Format, reply_codec};
use crate::clock;
use crate::held::HeldRequest;
use crate::metrics::{self, Hold, Hop};
use crate::node::{Entry, Node};
use crate::session::LocalReply;
use crate::takeover::{Found, Identity, find_session};
use crate::{Caller, ReplyEvent};

/// How long a request goes on by itself whose client left before the owner had replied, so that it
/// arrives although its owner may just be changing: longer than it takes to detect that a process
/// was killed.
const LINGER: Duration = Duration::from_secs(5);

/// How long a client is told to wait before it reconnects to another node, in milliseconds.
const RETRY_MS: std::ops::RangeInclusive<u32> = 500..=1_500;

type Finding = Pin<Box<dyn Future<Output = Result<Found, Refusal>> + Send>>;
type DrainSignal = Pin<Box<dyn Future<Output = ()> + Send>>;
type Pause = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A client's connection and the way of its request. Dropping it notifies the owner that the client
/// is gone; a request that the client had posted arrives all the same.
pub(crate) struct RoutedRequest {
    node: Arc<Node>,
    caller: Caller,
    route: RouteState,
    state: State,
    /// The last events of the reply; then it is over.
    rest: VecDeque<ReplyEvent>,
    /// The client's request is held.
    held: Option<HeldRequest>,
    retry: Retry,
    /// How many peers had been marked dead when the session was last looked for.
    deaths: u64,
    /// Ready when the node drains. Made when the connection becomes a stream.
    drain_signal: Option<DrainSignal>,
    /// Its client has left; it goes on for a moment.
    lingers: bool,
}

/// The owner that has the request of a new session.
pub(crate) enum Owner {
    /// This node.
    Here(LocalReply),
    /// A peer.
    There(ForwardedCall),
}

enum State {
    /// The session is looked for.
    Finding(Finding),
    /// The session is looked for again after a pause.
    Pausing(Pause),
    /// A session of this node has the request.
    Here(LocalReply),
    /// A peer has the request.
    There(ForwardedCall),
    /// A peer is asked to claim the session; then it gets the request.
    Claiming(ForwardedCall, Peer),
    /// Only the rest is left.
    Over,
}

impl From<Owner> for State {
    fn from(owner: Owner) -> Self {
        match owner {
            Owner::Here(reply) => Self::Here(reply),
            Owner::There(calling) => Self::There(calling),
        }
    }
}

impl RoutedRequest {
    /// Brings the request to the session, if it is here, or begins to look for it.
    pub(crate) fn begin_request(
        node: &Arc<Node>,
        caller: &Caller,
        request: SessionRequest,
    ) -> Self {
        let route = RouteState::new(request);
        let mut routed = Self::new(node, caller.clone(), route, State::Over);
        routed.enter(false);
        routed
    }

    /// Follows the request that has created its session.
    pub(crate) fn of_new_session(
        node: &Arc<Node>,
        caller: Caller,
        request: SessionRequest,
        owner: Owner,
    ) -> Self {
        Self::new(node, caller, RouteState::of_new_session(request), owner.into())
    }

    /// Follows the one connection of a new duplex session.
    pub(crate) fn of_duplex(node: &Arc<Node>, caller: Caller, owner: Owner) -> Self {
        Self::new(node, caller, RouteState::of_duplex(), owner.into())
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
            drain_signal: None,
            lingers: false,
        }
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<ReplyEvent>> {
        loop {
            if let Some(event) = self.rest.pop_front() {
                return Poll::Ready(Some(event));
            }
            if self.ends_by_drain(context) {
                continue;
            }
            let next = match &mut self.state {
                State::Over => return Poll::Ready(None),
                State::Finding(finding) => match ready!(finding.as_mut().poll(context)) {
                    Ok(Found::Here) => {
                        self.enter(true);
                        continue;
                    }
                    Ok(Found::At(peer)) => {
                        // Where the record names a node that replied that it lacks the session, that
                        // node alone may claim it: the answer to a claim of its own was lost.
                        match self.retry.tries() {
                            0 => self.forward(&peer),
                            _ => self.request_claim(peer),
                        }
                        continue;
                    }
                    Ok(Found::Ownerless) => match self.node.claimant_peer(self.retry.tries()) {
                        Some(peer) => {
                            self.request_claim(peer);
                            continue;
                        }
                        None => RouteStep::LocateLater,
                    },
                    Ok(Found::NoRoom) => match self.node.roomy_peer(self.retry.tries()) {
                        Some(peer) => {
                            self.request_claim(peer);
                            continue;
                        }
                        None => self.route.no_room_found(),
                    },
                    Ok(Found::Ended) => self.route.session_gone(),
                    Err(Refusal::UnknownSession) => self.route.session_unknown(),
                    Err(_) => RouteStep::LocateLater,
                },
                State::Pausing(pause) => {
                    ready!(pause.as_mut().poll(context));
                    self.find();
                    continue;
                }
                State::Here(reply) => match ready!(reply.poll_next(context)) {
                    Some(event) => {
                        count_reattached(&self.route, &event);
                        self.route.reply_received(event)
                    }
                    None => self.route.stream_ended(),
                },
                State::Claiming(calling, peer) => {
                    let answer = ready!(calling.poll_next(context));
                    let peer = peer.clone();
                    let event = answer.and_then(Result::ok).and_then(reply_codec::decode);
                    let answer = match event {
                        Some(ReplyEvent::Answer(answer)) => Some(answer),
                        _ => None,
                    };
                    match self.route.take_over_answered(answer) {
                        TakeOverAnswer::IsOwner => {
                            self.forward(&peer);
                            continue;
                        }
                        TakeOverAnswer::Step(next) => next,
                    }
                }
                State::There(calling) => match ready!(calling.poll_next(context)) {
                    Some(Ok(reply)) => match reply_codec::decode(reply) {
                        Some(event) => {
                            if !self.route.is_open() {
                                metrics::count_hop(Hop::Answered);
                            }
                            count_reattached(&self.route, &event);
                            self.route.reply_received(event)
                        }
                        None => {
                            tracing::error!("a peer replied what this version does not understand");
                            self.route.owner_lost()
                        }
                    },
                    Some(Err(CallError::NotStarted)) => {
                        metrics::count_hop(Hop::NotStarted);
                        self.route.not_started()
                    }
                    Some(Err(CallError::Lost)) => {
                        metrics::count_hop(Hop::Lost);
                        self.route.owner_lost()
                    }
                    Some(Err(CallError::TooLarge { bytes_max })) => {
                        metrics::count_hop(Hop::TooLarge);
                        self.route.message_too_large(bytes_max)
                    }
                    None => self.route.stream_ended(),
                },
            };
            if let Some(event) = self.follow(next) {
                return Poll::Ready(Some(event));
            }
        }
    }

    /// Does what follows; returns the event for the client, if there is one.
    fn follow(&mut self, next: RouteStep) -> Option<ReplyEvent> {
        match next {
            RouteStep::Forward(event) => {
                if is_progress(&event) {
                    self.note_progress();
                }
                return Some(event);
            }
            RouteStep::AwaitOwner => self.note_attached(),
            RouteStep::Locate | RouteStep::LocateLater => self.retry(),
            RouteStep::Finish(rest) => {
                self.note_progress();
                self.state = State::Over;
                self.rest = rest;
            }
        }
        None
    }

    /// The client received an event: nothing is held any more.
    fn note_progress(&mut self) {
        self.release_held();
        self.retry.progress();
        if self.drain_signal.is_none() && self.route.is_open() && self.node.has_peers() {
            self.drain_signal = Some(Box::pin(self.node.registry.departed()));
        }
    }

    /// An owner has the connection. Whether the client receives more by that is not known yet.
    fn note_attached(&mut self) {
        self.release_held();
        self.retry.attached(clock::now().0);
    }

    /// An owner has replied: the request is not held any more.
    fn release_held(&mut self) {
        if self.held.take().is_some() {
            metrics::count_hold(Hold::Reached);
        }
    }

    /// Brings the request to the session on this node. `is_found`: it was there a moment ago.
    fn enter(&mut self, is_found: bool) {
        let caller = &self.caller;
        let request = self.route.request().clone();
        let (tenant, principal, session) =
            (&caller.tenant.name, &caller.principal, &caller.session);
        match self.node.enter(tenant, principal, session, request, false) {
            Entry::Entered(reply) => self.state = State::Here(reply),
            Entry::Refused(
                refusal @ (Refusal::Busy | Refusal::Moved | Refusal::UnknownSession),
            ) => {
                let event = ReplyEvent::Answer(conversation::Answer::Refused(refusal));
                let next = self.route.reply_received(event);
                self.follow(next);
            }
            Entry::Refused(refusal) => {
                self.state = State::Over;
                self.rest = self.route.session_refused(refusal);
            }
            Entry::Absent if is_found => self.retry(),
            Entry::Absent => self.find(),
        }
    }

    /// Forwards the request to another node.
    fn forward(&mut self, peer: &Peer) {
        self.state = State::There(self.send(peer, Some(self.route.request())));
    }

    /// Asks another node to claim the session. The request stays here meanwhile, so nothing is
    /// lost with that node.
    fn request_claim(&mut self, peer: Peer) {
        self.state = State::Claiming(self.send(&peer, None), peer);
    }

    /// Sends to another node; through a third where that one cannot be reached.
    fn send(&self, peer: &Peer, request: Option<&SessionRequest>) -> ForwardedCall {
        match self.node.relay(peer, self.retry.tries()) {
            Some(relay) => {
                metrics::RELAYS.inc();
                let format = Format::read_by(peer).min(Format::read_by(&relay));
                let owner = peer.incarnation();
                relay.call(ForwardedRequest::encode_relayed(&self.caller, request, owner, format))
            }
            None => {
                peer.call(ForwardedRequest::encode(&self.caller, request, Format::read_by(peer)))
            }
        }
    }

    /// Looks for the session.
    fn find(&mut self) {
        self.deaths = self.node.context.cluster.deaths();
        let (node, caller) = (Arc::clone(&self.node), self.caller.clone());
        let fresh = self.retry.tries() > 0;
        self.state = State::Finding(Box::pin(async move {
            let identity = Identity { tenant: &caller.tenant.name, principal: &caller.principal };
            find_session(&node, identity, &caller.session, fresh).await
        }));
    }

    /// Looks for the session again after a pause; or not any more.
    fn retry(&mut self) {
        // The events that are left of the former owner never reach the client.
        self.state = State::Over;
        let hold = self.node.context.settings.hold();
        let hold_ms = u64::try_from(hold.as_millis()).unwrap_or(u64::MAX);
        let wait = self.retry.next_wait(clock::now().0, hold_ms);
        if self.held.is_none() && self.retry.tries() > 1 {
            self.held = self.node.held.hold();
            if self.held.is_none() {
                self.rest = self.route.hold_time_over(0);
                return;
            }
        }
        match wait {
            Wait::Now => self.find(),
            Wait::After(wait_ms) => {
                self.state = State::Pausing(self.pause(Duration::from_millis(wait_ms)));
            }
            Wait::GiveUp => {
                metrics::count_hold(Hold::Expired);
                self.held = None;
                self.rest = self.route.hold_time_over(hold.as_secs());
            }
        }
    }

    /// Waits for so long, or until a peer is marked dead, which may be the owner; not at all
    /// where one was, while the session was looked for.
    fn pause(&self, wait: Duration) -> Pause {
        let sleep = tokio::time::sleep(wait);
        let death = self.node.context.cluster.another_death(self.deaths);
        Box::pin(async move {
            tokio::select! {
                () = sleep => {}
                () = death => {}
            }
        })
    }

    /// Ends a stream that its client can resume at another node, where this node drains.
    fn ends_by_drain(&mut self, context: &mut Context<'_>) -> bool {
        let Some(drain_signal) = &mut self.drain_signal else { return false };
        if drain_signal.as_mut().poll(context).is_pending() {
            return false;
        }
        self.drain_signal = None;
        let retry = RETRY_MS.start() + jitter() % (RETRY_MS.end() - RETRY_MS.start() + 1);
        let Some(rest) = self.route.node_leaves(retry) else { return false };
        self.state = State::Over;
        self.rest = rest;
        true
    }
}

/// Counts a stream that was open before its present owner had it.
fn count_reattached(route: &RouteState, event: &ReplyEvent) {
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
            drain_signal: None,
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

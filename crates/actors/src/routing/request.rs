//! The route of one client request, for as long as the client keeps its connection open, across all
//! owners of the session.
//!
//! This file only waits, delivers and forwards; [`RouteState`] decides the next step.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use budget::{Held, Share};
use bytes::Bytes;
use cluster::{CallError, ForwardedCall, Peer};
use conversation::Refusal;
use fairness::{Computing, compute, is_long};
use ownership::retry::{Retry, Wait};
use ownership::route::{RouteState, RouteStep, TakeOverAnswer, is_progress};
use ownership::{Incarnation, SessionRequest};
use protocol::TraceContext;

use super::call_form::CallForm;
use super::reply_codec::About;
use super::{Format, reply_codec};
use crate::clock;
use crate::held::HeldRequest;
use crate::metrics::{self, Hold, Hop};
use crate::node::{Entry, Node};
use crate::session::LocalReply;
use crate::session_bytes::charge;
use crate::takeover::{Found, Identity, find_session};
use crate::{Caller, HandshakeSummary, ReplyEvent};

/// How long a request continues after its client has left before the owner replied. It arrives even
/// if its owner changes at that moment: this is longer than the detection of a killed process
/// takes. A long request that is being encoded is sent before that time begins.
const LINGER: Duration = Duration::from_secs(5);

/// How old a request may be whose tokens its next owner gets, in milliseconds. Those of a later request of the
/// session count for longer.
const TOKENS_MS_MAX: u64 = 60_000;

/// The time that a client waits before it reconnects to another node, in milliseconds.
const RETRY_MS: std::ops::RangeInclusive<u32> = 500..=1_500;

type Finding = Pin<Box<dyn Future<Output = Result<Found, Refusal>> + Send>>;
type DrainSignal = Pin<Box<dyn Future<Output = ()> + Send>>;
type Pause = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A client's connection and the route of its request. Dropping it notifies the owner that the
/// client has left; a posted request still arrives.
pub(crate) struct RoutedRequest {
    node: Arc<Node>,
    caller: Caller,
    route: RouteState,
    state: State,
    /// The last events of the reply.
    rest: VecDeque<ReplyEvent>,
    /// Set while the request is held.
    held: Option<HeldRequest>,
    retry: Retry,
    /// The number of peers that were found dead when the session was last located.
    deaths: u64,
    /// Ready when the node drains. Set when the reply becomes a stream.
    drain_signal: Option<DrainSignal>,
    /// Whether the client has left and the request continues for a moment.
    lingers: bool,
    /// The bytes of the request while no session of this node has it: it stays here, in case that
    /// its owner is lost. A session of this node counts them itself.
    request_bytes: Option<Held>,
    /// When it began, in milliseconds.
    began: u64,
    /// Where the request is in a trace; its next owner goes on with it.
    trace: Option<Box<TraceContext>>,
    /// The peer that has or had the request; `None` for this node.
    owner: Option<Incarnation>,
    /// What logs say of the session, once a reply said it.
    handshake: Option<HandshakeSummary>,
}

/// The owner that has the request of a new session.
pub(crate) enum Owner {
    /// This node.
    Here(LocalReply),
    /// A peer.
    There(ForwardedCall, Incarnation),
}

enum State {
    /// The session is being located.
    Finding(Finding),
    /// The session is located again after a pause.
    Pausing(Pause),
    /// A session of this node has the request.
    Here(LocalReply),
    /// Another thread encodes a long request for this peer.
    Encoding(Computing<Bytes>, Peer),
    /// A peer has the request.
    There(ForwardedCall),
    /// A peer was requested to claim the session, and gets the request afterwards.
    Claiming(ForwardedCall, Peer),
    /// Only the events in `rest` are left.
    Over,
}

impl Owner {
    fn peer(&self) -> Option<Incarnation> {
        match self {
            Self::Here(_) => None,
            Self::There(_, peer) => Some(*peer),
        }
    }
}

impl From<Owner> for State {
    fn from(owner: Owner) -> Self {
        match owner {
            Owner::Here(reply) => Self::Here(reply),
            Owner::There(calling, _) => Self::There(calling),
        }
    }
}

impl RoutedRequest {
    /// Sends the request to the session if it is on this node, or starts to locate it.
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

    /// Routes the request that created its session.
    pub(crate) fn of_new_session(
        node: &Arc<Node>,
        caller: Caller,
        request: SessionRequest,
        owner: Owner,
    ) -> Self {
        let peer = owner.peer();
        let route = RouteState::of_new_session(request);
        let mut routed = Self::new(node, caller, route, owner.into());
        routed.owner = peer;
        routed
    }

    /// Routes the connection of a new duplex session.
    pub(crate) fn of_duplex(node: &Arc<Node>, caller: Caller, owner: Owner) -> Self {
        let peer = owner.peer();
        let mut routed = Self::new(node, caller, RouteState::of_duplex(), owner.into());
        routed.owner = peer;
        routed
    }

    fn new(node: &Arc<Node>, caller: Caller, route: RouteState, state: State) -> Self {
        let trace = route.request().trace().map(|trace| Box::new(*trace));
        Self {
            trace,
            began: clock::now().0,
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
            request_bytes: None,
            owner: None,
            handshake: None,
        }
    }

    /// The name of the caller's tenant.
    pub(crate) fn tenant(&self) -> &Arc<str> {
        &self.caller.tenant.name
    }

    /// The share of the caller's tenant in the bytes that this node keeps.
    pub(crate) fn share(&self) -> Share {
        self.node.context.session_bytes.share_of_session(&self.caller.tenant.name)
    }

    /// The name of the node that has or had the request; `None` for this node. The address of a node
    /// that is gone is not known; then it is its incarnation.
    pub(crate) fn owner_name(&self) -> Option<Arc<str>> {
        self.owner.map(|owner| self.node.context.cluster.name_of(owner))
    }

    /// What logs say of the session, once it has replied.
    pub(crate) fn handshake(&self) -> Option<&HandshakeSummary> {
        self.handshake.as_ref()
    }

    /// Makes an event that was read the next one.
    pub(crate) fn put_back(&mut self, event: Option<ReplyEvent>) {
        if let Some(event) = event {
            self.rest.push_front(event);
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
                        // If the record names a node that replied that it does not have the
                        // session, only that node may claim it: the answer to its own claim was
                        // lost.
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
                        if self.handshake.is_none() {
                            self.handshake = reply.handshake().cloned();
                        }
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
                State::Encoding(encoding, to) => {
                    let encoded = ready!(Pin::new(encoding).poll(context));
                    self.state = State::There(to.call(encoded));
                    continue;
                }
                State::There(calling) => match ready!(calling.poll_next(context)) {
                    Some(Ok(reply)) => match reply_codec::decode_about(reply) {
                        Some((event, About { handshake, refused })) => {
                            self.handshake = handshake.or(self.handshake.take());
                            self.caller.note_refused(&refused);
                            if !self.route.is_open() {
                                metrics::count_hop(Hop::Answered);
                            }
                            count_reattached(&self.route, &event);
                            self.route.reply_received(event)
                        }
                        None => {
                            tracing::error!(
                                "undecodable reply from a peer; check the versions of all nodes"
                            );
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

    /// Performs the next step. Returns the event for the client, if any.
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

    /// Records that the client received an event, which ends the hold.
    fn note_progress(&mut self) {
        self.release_held();
        self.retry.progress();
        if self.drain_signal.is_none() && self.route.is_open() && self.node.has_peers() {
            self.drain_signal = Some(Box::pin(self.node.registry.departed()));
        }
    }

    /// Records that an owner has the connection. Whether it sends further events is not known yet.
    fn note_attached(&mut self) {
        self.release_held();
        self.retry.attached(clock::now().0);
    }

    /// Ends the hold: an owner has replied.
    fn release_held(&mut self) {
        if self.held.take().is_some() {
            metrics::count_hold(Hold::Reached);
        }
    }

    /// Sends the request to the session on this node. `is_found`: the session was just found here.
    fn enter(&mut self, is_found: bool) {
        let caller = &self.caller;
        let request = self.route.request().clone();
        let (tenant, principal, session) =
            (&caller.tenant.name, &caller.principal, &caller.session);
        match self.node.enter(tenant, principal, session, request, caller.tokens.as_ref(), false) {
            Entry::Entered(reply) => {
                self.owner = None;
                self.state = State::Here(reply);
                self.request_bytes = None;
            }
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
        self.owner = Some(peer.incarnation());
        let request = self.route.request();
        self.state = if is_long(request.body_bytes()) {
            let (relay, form) = self.way_to(peer);
            let (caller, trace) = (self.caller.clone(), self.trace.clone());
            let request = request.clone();
            let encode = move || form.encode(&caller, trace.as_deref(), Some(&request));
            State::Encoding(compute(self.tenant(), encode), relay.unwrap_or_else(|| peer.clone()))
        } else {
            State::There(self.send(peer, Some(request)))
        };
        self.charge_request();
    }

    /// Requests another node to claim the session. The request itself stays here meanwhile, so it
    /// is not lost with that node.
    fn request_claim(&mut self, peer: Peer) {
        self.state = State::Claiming(self.send(&peer, None), peer);
        self.charge_request();
    }

    /// Charges the request's bytes to the tenant's share, as long as it waits here.
    fn charge_request(&mut self) {
        if self.request_bytes.is_none() {
            self.request_bytes = charge(self.route.request().body_bytes(), &self.share());
        }
    }

    /// Sends a call to another node, through a relay if that node is unreachable.
    fn send(&self, peer: &Peer, request: Option<&SessionRequest>) -> ForwardedCall {
        let (relay, form) = self.way_to(peer);
        let call = form.encode(&self.caller, self.trace.as_deref(), request);
        relay.as_ref().unwrap_or(peer).call(call)
    }

    /// Waits until a long request is sent.
    async fn sent(&mut self) {
        if let State::Encoding(encoding, to) = &mut self.state {
            let call = encoding.await;
            self.state = State::There(to.call(call));
        }
    }

    /// The relay for calls to another node, if that node is unreachable, and the form of such calls.
    fn way_to(&self, peer: &Peer) -> (Option<Peer>, CallForm) {
        let relay = self.node.relay(peer, self.retry.tries());
        let form = match &relay {
            Some(relay) => {
                metrics::RELAYS.inc();
                let format = Format::read_by(peer).min(Format::read_by(relay));
                CallForm { format, owner: Some(peer.incarnation()) }
            }
            None => CallForm { format: Format::read_by(peer), owner: None },
        };
        (relay, form)
    }

    /// Starts to locate the session.
    fn find(&mut self) {
        self.deaths = self.node.context.cluster.deaths();
        if clock::now().0.saturating_sub(self.began) > TOKENS_MS_MAX {
            self.caller.tokens = None;
        }
        let (node, caller) = (Arc::clone(&self.node), self.caller.clone());
        let fresh = self.retry.tries() > 0;
        self.state = State::Finding(Box::pin(async move {
            let identity = Identity { tenant: &caller.tenant.name, principal: &caller.principal };
            find_session(&node, identity, &caller.session, fresh).await
        }));
    }

    /// Locates the session again after a pause, or gives up.
    fn retry(&mut self) {
        // Unread events of the former owner never reach the client.
        self.state = State::Over;
        let settings = &self.node.context.settings;
        let (hold, hold_ms) = (settings.hold(), settings.hold_ms);
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

    /// Waits for this time, or until a peer is found dead, which may be the owner. Does not wait if
    /// a peer was found dead while the session was located.
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

    /// Ends a resumable stream if this node drains, so that its client resumes it at another node.
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

/// A random delay, so that disconnected clients do not reconnect at the same time.
fn jitter() -> u32 {
    getrandom::u32().unwrap_or_default()
}

impl Drop for RoutedRequest {
    fn drop(&mut self) {
        let is_over = matches!(self.state, State::Here(_) | State::Over);
        if self.lingers || is_over || !self.route.lingers() {
            return;
        }
        // Outside a runtime the request cannot continue.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut rest = Self {
            node: Arc::clone(&self.node),
            caller: self.caller.clone(),
            route: std::mem::replace(
                &mut self.route,
                // A placeholder that is never polled.
                RouteState::new(SessionRequest::Listen { after: None }),
            ),
            state: std::mem::replace(&mut self.state, State::Over),
            rest: VecDeque::new(),
            held: self.held.take(),
            retry: self.retry,
            deaths: self.deaths,
            drain_signal: None,
            lingers: true,
            request_bytes: self.request_bytes.take(),
            began: self.began,
            trace: self.trace.take(),
            owner: self.owner,
            handshake: None,
        };
        // Bounded by the calls that links accept, by the long requests that clients sent, and by `LINGER`.
        runtime.spawn(async move {
            rest.sent().await;
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

//! The node that holds a client's connection: it finds the session's owner or claims the session,
//! and continues with the next owner if an owner is lost.

mod attached;

use std::collections::VecDeque;

use conversation::{Answer, Ending, Refusal};
use ownership::location::{self, Cause, Claimant, Location, Outcome};
use ownership::machine::Acquired;
use ownership::retry::{Retry, Wait};
use ownership::route::{RouteState, RouteStep, TakeOverAnswer, is_progress};
use ownership::{Error, Incarnation, Owner, Presence, Record};
use protocol::{Body, Message, Request, SessionId};

use super::client::{self, ConnId};
use super::net::{Call, Peer, PeerReply};
use super::process::{Claiming, Purpose};
use super::redis::{Command, short};
use super::world::{Happening, Timer, World};

/// Connections with numbers from here on belong to calls of peers that wait here, not to clients.
const OF_PEERS: ConnId = 1 << 60;

/// How often a connection checks whether a claim has ended, in milliseconds.
const CLAIM_POLL: u64 = 20;

/// One connection of a client at its ingress. [`RouteState`] and [`Retry`] decide its next step, as
/// in the product.
pub(super) struct RoutedConnection {
    pub(super) session: SessionId,
    /// The connection waits on behalf of a peer that asked this node to take the session over.
    for_peer: Option<(Incarnation, Call)>,
    /// The last node that was reached is asked to take the session over, and has no request yet.
    asks: bool,
    route: RouteState,
    retry: Retry,
    /// Incremented before each attachment.
    attachment: u64,
    /// The node that has the request, or to which a link is needed.
    owner: Option<Incarnation>,
    /// No node has the request: the owner of the session is looked up.
    seeks: bool,
    attempt: u64,
}

impl RoutedConnection {
    pub(super) fn waits_for(&self, peer: Incarnation) -> bool {
        self.owner == Some(peer)
    }

    fn is_attached_to(&self, owner: Incarnation) -> bool {
        self.waits_for(owner) && !self.seeks
    }

    /// Whether the record is read again instead of using the cached location.
    fn is_fresh(&self) -> bool {
        self.for_peer.is_some() || self.retry.tries() > 0
    }
}

impl World {
    /// A client's connection arrives.
    pub(super) fn arrives(
        &mut self,
        at: Incarnation,
        conn: ConnId,
        session: Option<SessionId>,
        request: client::ClientRequest,
    ) {
        let request = match request {
            client::ClientRequest::Begin(request) => return self.create_session(at, conn, request),
            client::ClientRequest::Post(message) => posted(message),
            client::ClientRequest::Listen(after) => ownership::SessionRequest::Listen { after },
            client::ClientRequest::Delete => ownership::SessionRequest::Delete,
        };
        let Some(session) = session else { return };
        self.keep(at, conn, session, RouteState::new(request));
        self.seek(at, conn);
    }

    fn keep(&mut self, at: Incarnation, conn: ConnId, session: SessionId, route: RouteState) {
        let Some(process) = self.processes.get_mut(&at) else { return };
        let connection = RoutedConnection {
            session,
            for_peer: None,
            asks: false,
            route,
            retry: Retry::new(),
            attachment: 0,
            owner: None,
            seeks: true,
            attempt: 0,
        };
        process.connections.insert(conn, connection);
    }

    /// A session that is created here answers this connection.
    pub(super) fn keep_new_session(
        &mut self,
        at: Incarnation,
        conn: ConnId,
        session: SessionId,
        request: Request,
    ) {
        self.keep(at, conn, session, RouteState::of_new_session(posted(request.into())));
        if let Some(connection) = self.connection(at, conn) {
            connection.attachment = 1;
            connection.owner = Some(at);
            connection.seeks = false;
        }
    }

    fn connection(&mut self, at: Incarnation, conn: ConnId) -> Option<&mut RoutedConnection> {
        self.processes.get_mut(&at)?.connections.get_mut(&conn)
    }

    // ---- Finding the owner ----

    /// Finds the owner of the session, and sends the request to it.
    pub(super) fn seek(&mut self, at: Incarnation, conn: ConnId) {
        let Some(process) = self.processes.get_mut(&at) else { return };
        let Some(connection) = process.connections.get_mut(&conn) else { return };
        connection.attempt += 1;
        (connection.owner, connection.seeks) = (None, true);
        let (attempt, session) = (connection.attempt, connection.session.clone());
        if process.sessions.contains_key(&session) {
            self.attach(at, conn, at);
            return;
        }
        if process.claims.contains_key(&session) {
            self.again_in(at, conn, CLAIM_POLL);
            return;
        }
        let fresh = connection.is_fresh();
        let known = process.known.get(&session).copied();
        let known = known.filter(|owner| process.members.contains_key(owner) && !fresh);
        match known {
            Some(owner) => self.attach(at, conn, owner),
            None => {
                let purpose = Purpose::Locate(conn, attempt, self.lease_generation_of(at));
                self.send_for(at, Command::Read(session), purpose);
            }
        }
    }

    fn again_in(&mut self, at: Incarnation, conn: ConnId, millis: u64) {
        let Some(connection) = self.connection(at, conn) else { return };
        let attempt = connection.attempt;
        self.after(millis, Happening::Rings(at, Timer::Again(conn, attempt)));
    }

    pub(super) fn try_again(&mut self, at: Incarnation, conn: ConnId, attempt: u64) {
        let Some(connection) =
            self.connection(at, conn).filter(|connection| connection.attempt == attempt)
        else {
            return;
        };
        if connection.owner.is_some() {
            // No link to the owner was established in time.
            let next = connection.route.not_started();
            self.proceed(at, conn, next);
        } else {
            self.seek(at, conn);
        }
    }

    /// Retries the requests that wait for a peer: it was reached, or is dead.
    pub(super) fn retry_those_at(&mut self, at: Incarnation, peer: Incarnation) {
        for conn in self.waiting_for(at, peer) {
            self.seek(at, conn);
        }
    }

    /// The connections that wait for a link to a peer.
    fn waiting_for(&self, at: Incarnation, peer: Incarnation) -> Vec<ConnId> {
        let Some(process) = self.processes.get(&at) else { return Vec::new() };
        let connections = process.connections.iter();
        let waiting =
            connections.filter(|(_, connection)| connection.waits_for(peer) && connection.seeks);
        waiting.map(|(conn, _)| *conn).collect()
    }

    /// A link to a peer was not established: the requests that waited for it were not started.
    pub(super) fn not_reached(&mut self, at: Incarnation, peer: Incarnation) {
        for conn in self.waiting_for(at, peer) {
            if let Some(connection) = self.connection(at, conn) {
                let next = connection.route.not_started();
                self.proceed(at, conn, next);
            }
        }
    }

    pub(super) fn located(
        &mut self,
        at: Incarnation,
        conn: ConnId,
        attempt: u64,
        lease_generation: Option<u64>,
        came: Result<Option<Record>, Error>,
    ) {
        if self.connection(at, conn).is_none_or(|connection| connection.attempt != attempt) {
            return;
        }
        let record = match came {
            Ok(Some(record)) => record,
            Ok(None) => {
                let held =
                    lease_generation.is_some() && lease_generation == self.lease_generation_of(at);
                let is_stable = self.is_stable(at);
                return match location::is_unknown(is_stable, held) {
                    Ok(()) => {
                        self.found_no_record(at, conn);
                        self.gone(at, conn);
                    }
                    Err(_) => self.wait(at, conn),
                };
            }
            Err(_) => return self.wait(at, conn),
        };
        let owner = match location::of_record(&record, at) {
            Location::Ended => return self.gone(at, conn),
            Location::Here if !self.rules.self_claims => return self.wait(at, conn),
            Location::Here => return self.take_up(at, conn, &record, Cause::Own),
            Location::Ownerless(cause) => return self.take_up(at, conn, &record, cause),
            Location::At(owner) => owner,
        };
        let Some(connection) = self.connection(at, conn) else { return };
        let (fresh, session) = (connection.is_fresh(), connection.session.clone());
        match self.presence_of_member(at, owner) {
            Some(Presence::Live(_)) if !fresh => {
                if let Some(process) = self.processes.get_mut(&at) {
                    process.known.insert(session, owner);
                }
                self.attach(at, conn, owner);
            }
            _ => {
                let lease_generation = self.lease_generation_of(at);
                let purpose = Purpose::Presence(conn, attempt, Box::new(record), lease_generation);
                self.send_for(at, Command::Presence(owner), purpose);
            }
        }
    }

    /// A node is about to answer that a session is unknown. The client of a call may receive only
    /// the error that the owner was lost.
    fn found_no_record(&mut self, at: Incarnation, conn: ConnId) {
        let now = self.now;
        let Some(process) = self.processes.get(&at) else { return };
        if let Some(connection) = process.connections.get(&conn) {
            let apart =
                process.split || self.checker.has_missed_apart(now, at, &connection.session);
            let is_apart = apart && process.held_a_lease(now);
            self.checker.found_no_record(now, &connection.session, is_apart);
        }
    }

    pub(super) fn lease_generation_of(&self, at: Incarnation) -> Option<u64> {
        self.processes.get(&at).and_then(|process| process.lease_generation(self.now))
    }

    pub(super) fn presence_told(
        &mut self,
        at: Incarnation,
        conn: ConnId,
        attempt: u64,
        record: &Record,
        lease_generation: Option<u64>,
        came: Result<Presence, Error>,
    ) {
        let holds = lease_generation.is_some() && lease_generation == self.lease_generation_of(at);
        let proves = self.lapse_proves(at);
        let Some(process) = self.processes.get_mut(&at) else { return };
        let Some(connection) = process.connections.get_mut(&conn) else { return };
        if connection.attempt != attempt {
            return;
        }
        let owner = record.owner.node;
        let Ok(presence) = came else { return self.wait(at, conn) };
        let claimable = location::claimable(&presence, proves, holds);
        match (claimable, presence) {
            (Ok(Some(cause)), _) => {
                process.members.remove(&owner);
                self.take_up(at, conn, record, cause);
            }
            (Ok(None), Presence::Live(lease)) => {
                let address = lease.address.parse().unwrap_or(0);
                process.addresses.insert(owner, address);
                process.members.insert(owner, lease);
                process.known.insert(connection.session.clone(), owner);
                self.attach(at, conn, owner);
            }
            _ => self.wait(at, conn),
        }
    }

    // ---- Claiming ----

    /// A session has no owner: this node or another one claims it.
    fn take_up(&mut self, at: Incarnation, conn: ConnId, record: &Record, cause: Cause) {
        let is_stable = self.is_stable(at);
        let taker = self.taker(at, conn);
        let Some(process) = self.processes.get(&at) else { return };
        let is_leaving = process.draining;
        match location::claimant(cause, is_leaving, is_stable, taker.is_some()) {
            Claimant::This => self.claim(at, conn, record, false),
            Claimant::ThisForAnother => self.claim(at, conn, record, true),
            Claimant::Another => match taker {
                _ if self.is_for_peer(at, conn) => self.wait(at, conn),
                Some(taker) => self.ask(at, conn, taker),
                None => self.wait(at, conn),
            },
        }
    }

    fn is_for_peer(&mut self, at: Incarnation, conn: ConnId) -> bool {
        self.connection(at, conn).is_some_and(|connection| connection.for_peer.is_some())
    }

    /// A node that takes sessions and has a link to this node; a different one for each attempt.
    fn taker(&self, at: Incarnation, conn: ConnId) -> Option<Incarnation> {
        let process = self.processes.get(&at)?;
        let turn = process.connections.get(&conn)?.retry.tries();
        let willing = process.members.iter().filter(|(_, lease)| !lease.draining);
        let linked = willing.map(|(peer, _)| *peer).filter(|peer| self.links.is_up(at, *peer));
        let linked: Vec<Incarnation> = linked.collect();
        linked.get(turn.checked_rem(linked.len())?).copied()
    }

    /// Claims a session; with `passes_on`, releases it at once.
    fn claim(&mut self, at: Incarnation, conn: ConnId, record: &Record, passes_on: bool) {
        let (is_stable, lease_generation) = (self.is_stable(at), self.lease_generation_of(at));
        let may = location::may_claim(is_stable, lease_generation.is_some());
        let expected = location::expected(record);
        let Some(process) = self.processes.get(&at) else { return };
        let Some(connection) = process.connections.get(&conn) else { return };
        let session = connection.session.clone();
        if self.rules.one_claim && process.claims.contains_key(&session) {
            return self.again_in(at, conn, CLAIM_POLL);
        }
        if may.is_err() {
            return self.wait(at, conn);
        }
        let random = self.random();
        let new = Owner { token: record.owner.token.next(random), node: at };
        let now = self.now;
        let Some(process) = self.processes.get_mut(&at) else { return };
        let failover_generation = process.generation(now).number;
        process.claims.insert(
            session.clone(),
            Claiming { new, lease_generation, failover_generation, passes_on },
        );
        let command = Command::Claim(session.clone(), expected, new);
        self.send_for(at, command, Purpose::Claim(session));
        self.again_in(at, conn, CLAIM_POLL);
    }

    pub(super) fn claimed(
        &mut self,
        at: Incarnation,
        session: &SessionId,
        came: Result<ownership::Claimed, Error>,
    ) {
        let lease_generation = self.lease_generation_of(at);
        let Some(process) = self.processes.get_mut(&at) else { return };
        let Some(claiming) = process.claims.get(session) else { return };
        let (token, asked, passes_on) =
            (claiming.new.token, claiming.lease_generation, claiming.passes_on);
        let acquired = Acquired {
            lease_generation: asked.unwrap_or(0),
            failover_generation: claiming.failover_generation,
        };
        let held = lease_generation.is_some() && lease_generation == asked;
        match (location::claim_outcome(&came, held), came) {
            (Outcome::Claimed, Ok(_)) if passes_on => {
                let release = Command::Release(session.clone(), token);
                self.send_for(at, release, Purpose::PassOn(session.clone()));
            }
            (Outcome::Claimed, Ok(claimed)) => {
                process.claims.remove(session);
                let name = self.name(at);
                self.note(|| {
                    format!("{name} has claimed {} as {}", session.as_str(), short(token))
                });
                self.adopt(at, session, claimed, acquired);
                self.retry_those_of(at, session);
            }
            _ => self.not_claimed(at, session),
        }
    }

    /// The session that this node claimed for another node is released, or the result is unknown.
    pub(super) fn passed_on(
        &mut self,
        at: Incarnation,
        session: &SessionId,
        came: Result<(), Error>,
    ) {
        if came.is_err() {
            return self.not_claimed(at, session);
        }
        if let Some(process) = self.processes.get_mut(&at) {
            process.claims.remove(session);
        }
        self.retry_those_of(at, session);
    }

    fn not_claimed(&mut self, at: Incarnation, session: &SessionId) {
        if let Some(process) = self.processes.get_mut(&at) {
            process.claims.remove(session);
        }
        for conn in self.seeking(at, session) {
            self.wait(at, conn);
        }
    }

    /// The connections here that look up this session.
    fn seeking(&self, at: Incarnation, session: &SessionId) -> Vec<ConnId> {
        let Some(process) = self.processes.get(&at) else { return Vec::new() };
        let connections = process.connections.iter();
        let seeking = connections
            .filter(|(_, connection)| connection.session == *session && connection.seeks);
        seeking.map(|(conn, _)| *conn).collect()
    }

    /// Retries the requests that wait for this session here.
    pub(super) fn retry_those_of(&mut self, at: Incarnation, session: &SessionId) {
        for conn in self.seeking(at, session) {
            self.seek(at, conn);
        }
    }

    /// Looks up the session of a peer's call, which may have no owner.
    pub(super) fn seek_for_peer(&mut self, at: Incarnation, from: Incarnation, call: Call) {
        let conn = OF_PEERS + self.random() % OF_PEERS;
        self.keep(
            at,
            conn,
            call.session.clone(),
            RouteState::new(ownership::SessionRequest::Delete),
        );
        if let Some(connection) = self.connection(at, conn) {
            connection.for_peer = Some((from, call));
        }
        self.seek(at, conn);
    }

    /// Removes the calls of peers that wait here and that their callers have given up.
    pub(super) fn forget_calls(
        &mut self,
        at: Incarnation,
        is_gone: impl Fn(Incarnation, &Call) -> bool,
    ) {
        let Some(process) = self.processes.get_mut(&at) else { return };
        process.connections.retain(
            |_, connection| !matches!(&connection.for_peer, Some((from, call)) if is_gone(*from, call)),
        );
    }
}

fn posted(message: Message) -> ownership::SessionRequest {
    ownership::SessionRequest::Post { body: Body::One(message), mirrored: None, again: false }
}

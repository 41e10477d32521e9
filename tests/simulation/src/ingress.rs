//! The node that holds a client's connection: it finds the session's owner, or claims the
//! session, and goes on with the next owner where one is lost.

mod attached;

use std::collections::VecDeque;

use conversation::{Answer, Ending, Refusal};
use ownership::course::{self, Course, Next, is_progress};
use ownership::location::{self, Location, Outcome};
use ownership::retry::{Retry, Wait};
use ownership::{Error, Expected, Incarnation, Owner, Presence, Record};
use protocol::{Body, Message, Request, SessionId};

use super::client::{self, ConnId};
use super::net::{Call, Peer, Said};
use super::process::{Claiming, Purpose};
use super::redis::{Command, short};
use super::rules::Rules;
use super::world::{Happening, Timer, World};

/// From here on, numbers of connections are those of nobody's client.
const PHANTOM: ConnId = 1 << 60;

/// How often a connection looks whether a claim under way has ended, in milliseconds.
const CLAIM_POLL: u64 = 20;

/// One connection of a client's at its ingress. What it does next is decided by [`Course`]
/// and [`Retry`], as in the product.
pub(super) struct Keeper {
    pub(super) session: SessionId,
    /// It claims for a peer, which sent the request here after it had read the record.
    for_peer: bool,
    course: Course,
    retry: Retry,
    /// Raised before each attaching.
    attachment: u64,
    /// The node that has the request, or whose link is waited for.
    owner: Option<Incarnation>,
    /// No node has the request: its owner is looked for.
    seeks: bool,
    attempt: u64,
}

impl Keeper {
    pub(super) fn waits_for(&self, peer: Incarnation) -> bool {
        self.owner == Some(peer)
    }

    fn is_attached_to(&self, owner: Incarnation) -> bool {
        self.waits_for(owner) && !self.seeks
    }

    /// Reads the record again instead of using the cached location.
    fn is_fresh(&self) -> bool {
        self.for_peer || self.retry.tries() > 0
    }
}

impl World {
    /// A client's connection arrives.
    pub(super) fn arrives(
        &mut self,
        at: Incarnation,
        conn: ConnId,
        session: Option<SessionId>,
        errand: client::Errand,
    ) {
        let errand = match errand {
            client::Errand::Begin(request) => return self.give_birth(at, conn, request),
            client::Errand::Post(message) => posted(message),
            client::Errand::Listen(after) => ownership::Errand::Listen { after },
            client::Errand::Delete => ownership::Errand::Delete,
        };
        let Some(session) = session else { return };
        self.keep(at, conn, session, Course::new(errand));
        self.seek(at, conn);
    }

    fn keep(&mut self, at: Incarnation, conn: ConnId, session: SessionId, course: Course) {
        let rules = course::Rules { marks_again: self.rules.marks_again };
        let Some(process) = self.processes.get_mut(&at) else { return };
        let keeper = Keeper {
            session,
            for_peer: conn >= PHANTOM,
            course: course.with_rules(rules),
            retry: Retry::new(),
            attachment: 0,
            owner: None,
            seeks: true,
            attempt: 0,
        };
        process.keepers.insert(conn, keeper);
    }

    /// A session that is born here speaks to this connection.
    pub(super) fn keep_newborn(
        &mut self,
        at: Incarnation,
        conn: ConnId,
        session: SessionId,
        request: Request,
    ) {
        self.keep(at, conn, session, Course::of_newborn(posted(request.into())));
        if let Some(keeper) = self.keeper(at, conn) {
            keeper.attachment = 1;
            keeper.owner = Some(at);
            keeper.seeks = false;
        }
    }

    fn keeper(&mut self, at: Incarnation, conn: ConnId) -> Option<&mut Keeper> {
        self.processes.get_mut(&at)?.keepers.get_mut(&conn)
    }

    // ---- Finding the owner ----

    /// Finds who owns the session, and brings the errand there.
    pub(super) fn seek(&mut self, at: Incarnation, conn: ConnId) {
        let Some(process) = self.processes.get_mut(&at) else { return };
        let Some(keeper) = process.keepers.get_mut(&conn) else { return };
        keeper.attempt += 1;
        (keeper.owner, keeper.seeks) = (None, true);
        let (attempt, session) = (keeper.attempt, keeper.session.clone());
        if process.sessions.contains_key(&session) {
            self.attach(at, conn, at);
            return;
        }
        if process.claims.contains_key(&session) {
            self.again_in(at, conn, CLAIM_POLL);
            return;
        }
        let fresh = keeper.is_fresh();
        let known = process.known.get(&session).copied();
        let known = known.filter(|owner| process.members.contains_key(owner) && !fresh);
        match known {
            Some(owner) => self.attach(at, conn, owner),
            None => {
                let purpose = Purpose::Locate(conn, attempt, self.right_of(at));
                self.send_for(at, Command::Read(session), purpose);
            }
        }
    }

    fn again_in(&mut self, at: Incarnation, conn: ConnId, millis: u64) {
        let Some(keeper) = self.keeper(at, conn) else { return };
        let attempt = keeper.attempt;
        self.after(millis, Happening::Rings(at, Timer::Again(conn, attempt)));
    }

    pub(super) fn try_again(&mut self, at: Incarnation, conn: ConnId, attempt: u64) {
        let Some(keeper) = self.keeper(at, conn).filter(|keeper| keeper.attempt == attempt) else {
            return;
        };
        if keeper.owner.is_some() {
            // No link to the owner came up in time.
            let next = keeper.course.not_started();
            self.proceed(at, conn, next);
        } else {
            self.seek(at, conn);
        }
    }

    /// Whoever waits for a peer tries again: it was reached, or is dead.
    pub(super) fn retry_those_at(&mut self, at: Incarnation, peer: Incarnation) {
        for conn in self.waiting_for(at, peer) {
            self.seek(at, conn);
        }
    }

    /// The connections that wait for a link to a peer.
    fn waiting_for(&self, at: Incarnation, peer: Incarnation) -> Vec<ConnId> {
        let Some(process) = self.processes.get(&at) else { return Vec::new() };
        let keepers = process.keepers.iter();
        let waiting = keepers.filter(|(_, keeper)| keeper.waits_for(peer) && keeper.seeks);
        waiting.map(|(conn, _)| *conn).collect()
    }

    /// A link to a peer did not come about: what waited for it was not started.
    pub(super) fn not_reached(&mut self, at: Incarnation, peer: Incarnation) {
        for conn in self.waiting_for(at, peer) {
            if let Some(keeper) = self.keeper(at, conn) {
                let next = keeper.course.not_started();
                self.proceed(at, conn, next);
            }
        }
    }

    pub(super) fn located(
        &mut self,
        at: Incarnation,
        conn: ConnId,
        attempt: u64,
        right: Option<u64>,
        came: Result<Option<Record>, Error>,
    ) {
        if self.keeper(at, conn).is_none_or(|keeper| keeper.attempt != attempt) {
            return;
        }
        let record = match came {
            Ok(Some(record)) => record,
            Ok(None) => {
                let held = right.is_some() && right == self.right_of(at);
                let is_settled = self.is_settled(at);
                return match location::is_unknown(is_settled, held, self.location_rules()) {
                    Ok(()) => {
                        self.found_no_record(at, conn);
                        self.refuse(at, conn, Refusal::UnknownSession);
                    }
                    Err(_) => self.wait(at, conn),
                };
            }
            Err(_) => return self.wait(at, conn),
        };
        let owner = match location::of_record(&record, at) {
            Location::Unknown => return self.refuse(at, conn, Refusal::UnknownSession),
            Location::Here if !self.rules.self_claims => return self.wait(at, conn),
            Location::Here | Location::Ownerless(_) => return self.claim(at, conn, &record),
            Location::At(owner) => owner,
        };
        let Some(keeper) = self.keeper(at, conn) else { return };
        let (fresh, session) = (keeper.is_fresh(), keeper.session.clone());
        match self.presence_of_member(at, owner) {
            Some(Presence::Live(_)) if !fresh => {
                if let Some(process) = self.processes.get_mut(&at) {
                    process.known.insert(session, owner);
                }
                self.attach(at, conn, owner);
            }
            _ => {
                let right = self.right_of(at);
                let purpose = Purpose::Presence(conn, attempt, Box::new(record), right);
                self.send_for(at, Command::Presence(owner), purpose);
            }
        }
    }

    /// A node is about to say that a session is unknown, of which a call may be told only that
    /// its owner was lost.
    fn found_no_record(&mut self, at: Incarnation, conn: ConnId) {
        let now = self.now;
        let Some(process) = self.processes.get(&at) else { return };
        if let Some(keeper) = process.keepers.get(&conn) {
            let apart = process.split || self.checker.has_missed_apart(now, at, &keeper.session);
            let is_apart = apart && process.held_a_lease(now);
            self.checker.found_no_record(now, &keeper.session, is_apart);
        }
    }

    fn location_rules(&self) -> location::Rules {
        let Rules { settles, unknown_by_lease, claims_by_lease, .. } = self.rules;
        location::Rules { settles, unknown_by_lease, claims_by_lease }
    }

    pub(super) fn right_of(&self, at: Incarnation) -> Option<u64> {
        self.processes.get(&at).and_then(|process| process.right(self.now))
    }

    pub(super) fn presence_told(
        &mut self,
        at: Incarnation,
        conn: ConnId,
        attempt: u64,
        record: &Record,
        right: Option<u64>,
        came: Result<Presence, Error>,
    ) {
        let holds = right.is_some() && right == self.right_of(at);
        let (proves, rules) = (self.lapse_proves(at), self.location_rules());
        let Some(process) = self.processes.get_mut(&at) else { return };
        let Some(keeper) = process.keepers.get_mut(&conn) else { return };
        if keeper.attempt != attempt {
            return;
        }
        let owner = record.owner.node;
        let Ok(presence) = came else { return self.wait(at, conn) };
        let claimable = location::claimable(&presence, proves, holds, rules);
        match (claimable, presence) {
            (Ok(Some(_)), _) => {
                process.members.remove(&owner);
                self.claim(at, conn, record);
            }
            (Ok(None), Presence::Live(lease)) => {
                let address = lease.address.parse().unwrap_or(0);
                process.addresses.insert(owner, address);
                process.members.insert(owner, lease);
                process.known.insert(keeper.session.clone(), owner);
                self.attach(at, conn, owner);
            }
            _ => self.wait(at, conn),
        }
    }

    // ---- Claiming ----

    fn claim(&mut self, at: Incarnation, conn: ConnId, record: &Record) {
        let (is_settled, right) = (self.is_settled(at), self.right_of(at));
        let may = location::may_claim(is_settled, right.is_some(), self.location_rules());
        let expected = location::expected(record);
        let Some(process) = self.processes.get_mut(&at) else { return };
        let Some(keeper) = process.keepers.get(&conn) else { return };
        let session = keeper.session.clone();
        let busy = self.rules.one_claim && process.claims.contains_key(&session);
        if busy {
            self.again_in(at, conn, CLAIM_POLL);
            return;
        }
        if may.is_err() {
            self.wait(at, conn);
            return;
        }
        // What names this node nobody else can claim, so it does, and gives it up again.
        let mine = record.owner.node == at && expected != Expected::Released;
        if process.draining && !(mine && self.rules.claims_own_draining) {
            // Another claims it, and this node goes on forwarding.
            let others: Vec<Incarnation> = process
                .members
                .iter()
                .filter(|(_, lease)| !lease.draining)
                .map(|(peer, _)| *peer)
                .collect();
            let others: Vec<Incarnation> =
                others.into_iter().filter(|peer| self.links.is_up(at, *peer)).collect();
            match self.rng.pick(&others) {
                Some(peer) => self.attach_and(at, conn, peer, true),
                None => self.wait(at, conn),
            }
            return;
        }
        let random = self.random();
        let new = Owner { token: record.owner.token.next(random), node: at };
        let Some(process) = self.processes.get_mut(&at) else { return };
        process.claims.insert(session.clone(), Claiming { new, right });
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
        let right = self.right_of(at);
        let rules = self.location_rules();
        let Some(process) = self.processes.get_mut(&at) else { return };
        let Some(Claiming { new, right: asked }) = process.claims.remove(session) else { return };
        let held = right.is_some() && right == asked;
        match (location::claim_outcome(&came, held, rules), came) {
            (Outcome::Claimed, Ok(claimed)) => {
                let name = self.name(at);
                let text = short(new.token);
                self.note(|| format!("{name} has claimed {} as {text}", session.as_str()));
                self.adopt(at, session, claimed, asked.unwrap_or(0));
            }
            _ => {
                for conn in self.seeking(at, session) {
                    self.wait(at, conn);
                }
                return;
            }
        }
        self.retry_those_of(at, session);
    }

    /// The connections for which this session is looked for here.
    fn seeking(&self, at: Incarnation, session: &SessionId) -> Vec<ConnId> {
        let Some(process) = self.processes.get(&at) else { return Vec::new() };
        let keepers = process.keepers.iter();
        let seeking = keepers.filter(|(_, keeper)| keeper.session == *session && keeper.seeks);
        seeking.map(|(conn, _)| *conn).collect()
    }

    /// Whoever waits for this session here tries again.
    pub(super) fn retry_those_of(&mut self, at: Incarnation, session: &SessionId) {
        for conn in self.seeking(at, session) {
            if conn >= PHANTOM {
                if let Some(process) = self.processes.get_mut(&at) {
                    process.keepers.remove(&conn);
                }
                continue;
            }
            self.seek(at, conn);
        }
    }

    /// Claims a session on behalf of a peer that came here for it.
    pub(super) fn seek_for_peer(&mut self, at: Incarnation, session: &SessionId) {
        let Some(process) = self.processes.get(&at) else { return };
        let seeks =
            |(conn, keeper): (&ConnId, &Keeper)| *conn >= PHANTOM && keeper.session == *session;
        if process.keepers.iter().any(seeks) {
            return;
        }
        let conn = PHANTOM + self.random() % PHANTOM;
        self.keep(at, conn, session.clone(), Course::new(ownership::Errand::Delete));
        self.seek(at, conn);
    }
}

fn posted(message: Message) -> ownership::Errand {
    ownership::Errand::Post { body: Body::One(message), mirrored: None, again: false }
}

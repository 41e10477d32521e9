//! The node that holds a client's connection: it finds the session's owner, or claims the
//! session, and goes on with the next owner where one is lost.

mod attached;

use conversation::{Answer, Ending, EventId, Frame, Refusal};
use protocol::{Message, RequestId, Response, SessionId};
use store::{Error, Expected, Incarnation, Owner, Presence, Record, Standing};

use super::client::{ConnId, Errand, Told};
use super::net::{Call, Peer, Said};
use super::process::{Claiming, Purpose};
use super::redis::{Command, short};
use super::world::{Happening, Timer, World};

/// From here on, numbers of connections are those of nobody's client.
const PHANTOM: ConnId = 1 << 60;

/// One connection of a client's at its ingress.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) session: SessionId,
    /// What is to be brought to the next owner.
    errand: Errand,
    /// What the client sent.
    original: Errand,
    /// Raised before each attaching.
    attachment: u64,
    /// To whom it is attached, or was sent.
    owner: Option<Incarnation>,
    /// A former owner may have begun with it.
    again: bool,
    /// It was handed over, and not given back as not started.
    sent: bool,
    /// The client's response has begun.
    opened: bool,
    /// The last word on what the client asked has passed.
    settled: bool,
    /// The last event that the client was told.
    cursor: Option<EventId>,
    /// Since when it is held, by the world's clock.
    held_since: Option<u64>,
    /// Since when no owner has said anything to it, however often it was sent.
    unheard_since: Option<u64>,
    attempt: u64,
    /// Nothing that is known is believed.
    fresh: bool,
}

impl Keeper {
    pub(super) fn waits_for(&self, peer: Incarnation) -> bool {
        self.owner == Some(peer)
    }

    /// The request whose last word has not passed.
    fn owed(&self) -> Option<RequestId> {
        let request = self.original.request().filter(|_| !self.settled);
        request.map(|request| request.id.clone())
    }

    fn is_last_word(&self, frame: &Frame) -> bool {
        let (Frame::Message { data, .. }, Some(id)) = (frame, self.owed()) else { return false };
        let message = Message::parse(data.clone());
        matches!(message, Ok(Message::Response(response)) if response.id == Some(id))
    }

    fn is_attached_to(&self, owner: Incarnation) -> bool {
        self.waits_for(owner) && self.held_since.is_none()
    }
}

impl World {
    /// A client's connection arrives.
    pub(super) fn arrives(
        &mut self,
        at: Incarnation,
        conn: ConnId,
        session: Option<SessionId>,
        errand: Errand,
    ) {
        if let Errand::Begin(request) = errand {
            self.give_birth(at, conn, request);
            return;
        }
        let Some(session) = session else { return };
        self.keep(at, conn, session, errand);
        self.seek(at, conn);
    }

    fn keep(&mut self, at: Incarnation, conn: ConnId, session: SessionId, errand: Errand) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&at) else { return };
        let keeper = Keeper {
            session,
            original: errand.clone(),
            errand,
            attachment: 0,
            owner: None,
            again: false,
            sent: false,
            opened: false,
            settled: false,
            cursor: None,
            held_since: Some(now),
            unheard_since: Some(now),
            attempt: 0,
            fresh: false,
        };
        process.keepers.insert(conn, keeper);
    }

    /// A session that is born here speaks to this connection.
    pub(super) fn keep_newborn(&mut self, at: Incarnation, conn: ConnId, session: SessionId) {
        self.keep(at, conn, session, Errand::Delete);
        let keeper = self.keeper(at, conn);
        if let Some(keeper) = keeper {
            keeper.attachment = 1;
            keeper.owner = Some(at);
            keeper.held_since = None;
        }
    }

    fn keeper(&mut self, at: Incarnation, conn: ConnId) -> Option<&mut Keeper> {
        self.processes.get_mut(&at)?.keepers.get_mut(&conn)
    }

    // ---- Finding the owner ----

    /// Finds who owns the session, and brings the errand there.
    pub(super) fn seek(&mut self, at: Incarnation, conn: ConnId) {
        let (now, hold) = (self.now, self.plan.hold);
        let Some(process) = self.processes.get_mut(&at) else { return };
        let Some(keeper) = process.keepers.get_mut(&conn) else { return };
        keeper.attempt += 1;
        let (attempt, session) = (keeper.attempt, keeper.session.clone());
        keeper.held_since.get_or_insert(now);
        let since = *keeper.unheard_since.get_or_insert(now);
        if now >= since + hold {
            self.give_up(at, conn);
            return;
        }
        if process.sessions.contains_key(&session) {
            self.attach(at, conn, at);
            return;
        }
        if process.claims.contains_key(&session) {
            self.again_in(at, conn, 20);
            return;
        }
        let fresh = keeper.fresh;
        let known = process.known.get(&session).copied();
        let known = known.filter(|owner| process.members.contains_key(owner) && !fresh);
        match known {
            Some(owner) => self.attach(at, conn, owner),
            None => self.send_for(at, Command::Read(session), Purpose::Locate(conn, attempt)),
        }
    }

    fn again_in(&mut self, at: Incarnation, conn: ConnId, millis: u64) {
        let Some(keeper) = self.keeper(at, conn) else { return };
        let attempt = keeper.attempt;
        self.after(millis, Happening::Rings(at, Timer::Again(conn, attempt)));
    }

    pub(super) fn try_again(&mut self, at: Incarnation, conn: ConnId, attempt: u64) {
        if self.keeper(at, conn).is_some_and(|keeper| keeper.attempt == attempt) {
            self.seek(at, conn);
        }
    }

    /// Whoever waits for a peer tries again: it was reached, or is dead.
    pub(super) fn retry_those_at(&mut self, at: Incarnation, peer: Incarnation) {
        let Some(process) = self.processes.get(&at) else { return };
        let waiting: Vec<ConnId> = process
            .keepers
            .iter()
            .filter(|(_, keeper)| keeper.waits_for(peer) && keeper.held_since.is_some())
            .map(|(conn, _)| *conn)
            .collect();
        for conn in waiting {
            self.seek(at, conn);
        }
    }

    pub(super) fn located(
        &mut self,
        at: Incarnation,
        conn: ConnId,
        attempt: u64,
        came: Result<Option<Record>, Error>,
    ) {
        if self.keeper(at, conn).is_none_or(|keeper| keeper.attempt != attempt) {
            return;
        }
        let record = match came {
            Ok(Some(record)) if record.standing != Standing::Ended => record,
            // Whoever owns it may yet write it anew.
            // Nor can a node without a lease say what there is.
            Ok(None) if self.settles(at) || !self.may_say_unknown(at) => {
                return self.again_in(at, conn, 200);
            }
            Ok(_) => {
                let unknown = Said::Answer(Answer::Refused(Refusal::UnknownSession));
                self.said_here(at, conn, unknown);
                return;
            }
            Err(_) => return self.again_in(at, conn, 200),
        };
        let owner = record.owner.node;
        if record.standing == Standing::Released {
            return self.claim(at, conn, &record, Expected::Released);
        }
        if owner == at {
            if self.rules.self_claims {
                self.claim(at, conn, &record, Expected::Token(record.owner.token));
            } else {
                self.again_in(at, conn, 200);
            }
            return;
        }
        let Some(keeper) = self.keeper(at, conn) else { return };
        let (fresh, session) = (keeper.fresh, keeper.session.clone());
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

    fn may_say_unknown(&self, at: Incarnation) -> bool {
        self.right_of(at).is_some() || !self.rules.unknown_by_lease
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
        let holds = holds || !self.rules.claims_by_lease;
        let proves = self.lapse_proves(at);
        let Some(process) = self.processes.get_mut(&at) else { return };
        let Some(keeper) = process.keepers.get_mut(&conn) else { return };
        if keeper.attempt != attempt {
            return;
        }
        let owner = record.owner.node;
        let expected = Expected::Token(record.owner.token);
        match came {
            Ok(Presence::Live(lease)) => {
                let address = lease.address.parse().unwrap_or(0);
                process.addresses.insert(owner, address);
                process.members.insert(owner, lease);
                process.known.insert(keeper.session.clone(), owner);
                self.attach(at, conn, owner);
            }
            Ok(Presence::Dead { .. }) => {
                process.dead.insert(owner);
                self.claim(at, conn, record, expected);
            }
            Ok(Presence::Gone) if !proves => self.again_in(at, conn, 200),
            Ok(Presence::Gone) if holds => self.claim(at, conn, record, expected),
            Ok(Presence::Gone) | Err(_) => self.again_in(at, conn, 200),
        }
    }

    // ---- Claiming ----

    fn claim(&mut self, at: Incarnation, conn: ConnId, record: &Record, expected: Expected) {
        let settles = self.settles(at);
        let right = self.right_of(at);
        let may = right.is_some() || !self.rules.claims_by_lease;
        let Some(process) = self.processes.get_mut(&at) else { return };
        let Some(keeper) = process.keepers.get(&conn) else { return };
        let session = keeper.session.clone();
        let busy = self.rules.one_claim && process.claims.contains_key(&session);
        if settles || !may || busy {
            self.again_in(at, conn, 100);
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
                None => self.again_in(at, conn, 200),
            }
            return;
        }
        let random = self.random();
        let new = Owner { token: record.owner.token.next(random), node: at };
        let Some(process) = self.processes.get_mut(&at) else { return };
        process.claims.insert(session.clone(), Claiming { new, right });
        let command = Command::Claim(session.clone(), expected, new);
        self.send_for(at, command, Purpose::Claim(session));
        self.again_in(at, conn, 20);
    }

    pub(super) fn claimed(
        &mut self,
        at: Incarnation,
        session: &SessionId,
        came: Result<store::Claimed, Error>,
    ) {
        let right = self.right_of(at);
        let by_lease = self.rules.claims_by_lease;
        let Some(process) = self.processes.get_mut(&at) else { return };
        let Some(Claiming { new, right: asked }) = process.claims.remove(session) else { return };
        let holds = (right.is_some() && right == asked) || !by_lease;
        match came {
            Ok(claimed) if claimed.record.owner.token == new.token && holds => {
                let name = self.name(at);
                let text = short(new.token);
                self.note(|| format!("{name} has claimed {} as {text}", session.as_str()));
                self.adopt(at, session, claimed, asked.unwrap_or(0));
            }
            _ => process.keepers.values_mut().for_each(|keeper| {
                if keeper.session == *session {
                    keeper.fresh = true;
                }
            }),
        }
        self.retry_those_of(at, session);
    }

    /// Whoever waits for this session here tries again.
    pub(super) fn retry_those_of(&mut self, at: Incarnation, session: &SessionId) {
        let Some(process) = self.processes.get(&at) else { return };
        let waiting: Vec<ConnId> = process
            .keepers
            .iter()
            .filter(|(_, keeper)| keeper.session == *session && keeper.held_since.is_some())
            .map(|(conn, _)| *conn)
            .collect();
        for conn in waiting {
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
        self.keep(at, conn, session.clone(), Errand::Delete);
        self.seek(at, conn);
    }
}

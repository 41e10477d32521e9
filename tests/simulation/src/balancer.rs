//! Clients' connections: their nodes, which the balancer selects, and their events.

use conversation::{Answer, Refusal};
use ownership::{Incarnation, RecordStatus};

use super::client::{ClientEvent, ClientRequest, ConnId, Does, Phase, Wake};
use super::process::{ON_ITS_WAY, Process};
use super::world::{Happening, World};

/// How long, in milliseconds, an owner tries to write the end of a session before the DELETE is
/// answered with 503: somewhat less than the 10 s that the owner counts on its own clock.
const END_PATIENCE: u64 = 9_500;

/// The errors of requests that waited too long for the store or for their session.
const NOT_IN_TIME: [&str; 2] = ["did not acknowledge this within", "could not be reached for"];

/// A connection of a client.
pub(super) struct Conn {
    pub(super) client: usize,
    pub(super) ingress: Incarnation,
    /// When the node received the connection, and how long the node must hold it, in milliseconds,
    /// before it may refuse it because the session has no owner.
    held_from: (u64, u64),
    /// Neither side has closed it.
    pub(super) whole: bool,
    /// When the newest event on its way to the client arrives.
    tells_until: u64,
}

impl World {
    pub(super) fn wakes(&mut self, number: usize, wake: Wake) {
        let mut does = Vec::new();
        if let Some(client) = self.clients.get_mut(number) {
            client.wake(self.now, wake, &mut does);
        }
        self.does(number, does);
    }

    pub(super) fn does(&mut self, number: usize, does: Vec<Does>) {
        for done in does {
            match done {
                Does::Connect(conn, request, to) => self.connect(number, conn, request, to),
                Does::Wake(after, wake) => self.after(after, Happening::Wakes(number, wake)),
                Does::HangUp(conn) => {
                    let Some(conn_) = self.conns.get_mut(&conn) else { continue };
                    conn_.whole = false;
                    let at = conn_.ingress;
                    self.note(|| format!("c{number} hangs up {conn:x}"));
                    let after = self.rng.between(0, 5);
                    self.after(after, Happening::HungUp { at, conn });
                }
                Does::Complain(text) => self.checker.breaks(format!("client {number}: {text}")),
                Does::Forgotten(text, since) => {
                    let Some(session) = self.clients[number].session.clone() else { continue };
                    let text = format!("client {number}: {text}");
                    self.checker.forgotten_since(self.now, &session, since, &text);
                }
            }
        }
    }

    /// The balancer gives a connection to a node.
    fn connect(&mut self, number: usize, conn: ConnId, request: ClientRequest, to: Option<usize>) {
        let ready = |world: &Self, draining: bool| -> Vec<Incarnation> {
            let there = world.slots.iter().flatten().copied();
            there
                .filter(|at| {
                    let process = world.processes.get(at);
                    process.is_some_and(|process| !process.out_of_rotation || draining)
                })
                .collect()
        };
        let mut nodes = ready(self, false);
        if nodes.is_empty() {
            nodes = ready(self, true);
        }
        let probing = self.plan.probe_of(self.now, number);
        let to = to.or(self.plan.born_at.filter(|_| matches!(request, ClientRequest::Begin(_))));
        let sent = to.and_then(|slot| self.slots.get(slot).copied().flatten());
        let picked = match probing {
            _ if sent.is_some() => sent,
            Some(turn) if !nodes.is_empty() => nodes.get(turn % nodes.len()).copied(),
            _ => self.rng.pick(&nodes),
        };
        let session = self.clients[number].session.clone();
        let Some(at) = picked else {
            self.conns.insert(
                conn,
                Conn {
                    client: number,
                    ingress: Incarnation(0),
                    held_from: (self.now, 0),
                    whole: true,
                    tells_until: 0,
                },
            );
            self.after(20, Happening::Tells { conn, sent: ClientEvent::Cut });
            return;
        };
        let session = session.filter(|_| !matches!(request, ClientRequest::Begin(_)));
        let name = self.name(at);
        let text = describe(&request);
        self.note(|| format!("c{number} {conn:x} -> {name} {text}"));
        let hold = match request {
            // A session that cannot be created or ended is refused earlier.
            ClientRequest::Begin(_) => 0,
            ClientRequest::Delete => END_PATIENCE,
            ClientRequest::Post(_) | ClientRequest::Listen(_) => self.plan.hold * 99 / 100,
        };
        let held_from = (self.now, hold);
        self.clients[number].goes_to(conn, at);
        let whole = Conn { client: number, ingress: at, held_from, whole: true, tells_until: 0 };
        self.conns.insert(conn, whole);
        let after = self.rng.between(0, 5);
        self.after(after, Happening::Arrives { at, conn, session, request });
    }

    /// Whether a client connected within so many milliseconds.
    pub(super) fn is_begun_since(&self, conn: ConnId, millis: u64) -> bool {
        self.conns.get(&conn).is_some_and(|conn| self.now < conn.held_from.0 + millis)
    }

    /// An ingress writes to a client's connection.
    pub(super) fn tell(&mut self, conn: ConnId, sent: ClientEvent) {
        let wait = self.rng.between(0, 5);
        let Some(wire) = self.conns.get_mut(&conn).filter(|wire| wire.whole) else { return };
        let at = (self.now + wait).max(wire.tells_until);
        wire.tells_until = at;
        self.at(at, Happening::Tells { conn, sent });
    }

    pub(super) fn tells(&mut self, conn: ConnId, sent: ClientEvent) {
        let Some(wire) = self.conns.get_mut(&conn).filter(|wire| wire.whole) else { return };
        let (now, number, ingress) = (self.now, wire.client, wire.ingress);
        let (since, hold) = wire.held_from;
        if matches!(
            sent,
            ClientEvent::Answer(_) | ClientEvent::Welcome(..) | ClientEvent::End | ClientEvent::Cut
        ) {
            wire.whole = false;
            self.conns.remove(&conn);
        }
        let was_split = self.checker.was_split(ingress, now.saturating_sub(ON_ITS_WAY));
        let apart = self.processes.get(&ingress).filter(|_| was_split);
        let apart = apart.map(|process| process.held_a_lease(now));
        self.note(|| format!("c{number} {conn:x} <- {}", describe_told(&sent)));
        if let (Some(holds), Some(session)) = (apart, self.clients[number].session.clone()) {
            self.checker.sent_while_apart(now, &session, &sent, holds);
        }
        self.check_refusal(number, ingress, &sent, since + hold);
        // The node has ended, or sends its own end: the connection breaks with it.
        let stays = self.processes.contains_key(&ingress) && answer_is_cut(&sent);
        let is_told = matches!(sent, ClientEvent::Answer(Answer::Ended));
        let mut does = Vec::new();
        if let Some(client) = self.clients.get_mut(number) {
            let (before, lost) = (client.phase, client.lost_calls());
            if stays && client.asked_to_end.is_some() && client.listens_on(conn) {
                self.checker.cut_at_the_end(now, number);
            }
            client.receive_event(self.now, conn, sent, &mut does);
            if stays && client.lost_calls() > lost {
                let text = "a connection was cut by a living node before the final response";
                does.push(Does::Complain(text.to_owned()));
            }
            // The client may learn of the end before it is written; it is promised once it is
            // answered.
            if client.phase == Phase::Ended
                && (before != Phase::Ended || is_told)
                && let Some(session) = client.session.clone()
            {
                // The owner answers that the session is unknown as soon as the client has asked for
                // the end.
                let record = self.redis.record(now, &session);
                let is_written = record.is_some_and(|r| r.status == RecordStatus::Ended);
                let ends = |process: &Process| {
                    process.has_tombstone(&session)
                        || process.sessions.get(&session).is_some_and(|owned| owned.over)
                };
                let was_written = self.checker.ends_written.contains(&session);
                if is_told || is_written {
                    self.checker.ended(now, session);
                } else if !was_written
                    && !self.processes.values().any(ends)
                    && !self.checker.had_begun_to_end(now, &session, ingress)
                {
                    let text = "the session is unknown, and its end has not begun";
                    self.checker.forgotten(now, &session, text);
                }
            }
        }
        self.does(number, does);
    }

    /// A request may be refused because of a missing owner or store only if it was held for as long
    /// as promised, or if the node that holds it has drained and ends.
    fn check_refusal(
        &mut self,
        number: usize,
        ingress: Incarnation,
        sent: &ClientEvent,
        held: u64,
    ) {
        if let ClientEvent::Answer(Answer::Json(data)) = sent {
            let text = String::from_utf8_lossy(data);
            if NOT_IN_TIME.iter().any(|words| text.contains(words)) {
                self.checker.timed_out(self.now, number, &text);
            }
        }
        let ClientEvent::Answer(Answer::Refused(refusal)) = sent else { return };
        if !matches!(refusal, Refusal::Unavailable | Refusal::Stopping | Refusal::Busy) {
            return;
        }
        if *refusal == Refusal::Unavailable {
            self.checker.timed_out(self.now, number, &refusal.to_string());
        }
        if self.now < held && !self.checker.is_leaving(self.now, ingress, &self.plan) {
            let early = held - self.now;
            let text = format!("client {number} was refused {early} ms too early: {refusal}");
            self.checker.breaks(text);
        }
    }

    /// Breaks every connection to a process that has ended.
    pub(super) fn cut_clients_of(&mut self, incarnation: Incarnation, after: u64) {
        let seen = self.now + after;
        let gone: Vec<(ConnId, u64)> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.ingress == incarnation && conn.whole)
            // The client still reads what was written before.
            .map(|(conn, wire)| (*conn, wire.tells_until.max(seen)))
            .collect();
        for (conn, at) in gone {
            self.at(at, Happening::Tells { conn, sent: ClientEvent::Cut });
        }
    }
}

fn answer_is_cut(sent: &ClientEvent) -> bool {
    matches!(sent, ClientEvent::Cut)
}

/// A short text for a request.
pub(super) fn describe(request: &ClientRequest) -> String {
    match request {
        ClientRequest::Begin(_) => "begin".to_owned(),
        ClientRequest::Post(message) => {
            let raw = message.line();
            let text = String::from_utf8_lossy(&raw);
            let short: String = text.chars().skip(16).take(110).collect();
            format!("POST {short}")
        }
        ClientRequest::Listen(None) => "GET".to_owned(),
        ClientRequest::Listen(Some(after)) => format!("GET after {after}"),
        ClientRequest::Delete => "DELETE".to_owned(),
    }
}

fn describe_told(sent: &ClientEvent) -> String {
    match sent {
        ClientEvent::Welcome(session) => format!("welcome to {}", session.as_str()),
        ClientEvent::Answer(conversation::Answer::Json(data)) => {
            format!("json {}", String::from_utf8_lossy(data))
        }
        ClientEvent::Answer(answer) => format!("{answer:?}"),
        ClientEvent::Frame(conversation::Frame::Message { id, data }) => {
            let id = id.map_or("-".to_owned(), |id| id.to_string());
            format!("{id} {}", String::from_utf8_lossy(data))
        }
        ClientEvent::Frame(conversation::Frame::Cursor { id, .. }) => format!("cursor {id}"),
        other => format!("{other:?}"),
    }
}

//! Clients' connections: which node the balancer gives them to, and what passes over them.

use conversation::Answer;
use store::{Incarnation, Standing};

use super::client::{ConnId, Does, Errand, Phase, Told, Wake};
use super::world::{Happening, World};

/// A connection of a client's, as the wire knows it.
pub(super) struct Conn {
    pub(super) client: usize,
    pub(super) ingress: Incarnation,
    /// Neither side has left it.
    pub(super) whole: bool,
    /// When the newest thing on its way to the client arrives.
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
                Does::Connect(conn, errand, to) => self.connect(number, conn, errand, to),
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
                Does::Forgotten(text) => {
                    let Some(session) = self.clients[number].session.clone() else { continue };
                    self.checker.forgotten(self.now, &session, &format!("client {number}: {text}"));
                }
            }
        }
    }

    /// The balancer gives a connection to some node.
    fn connect(&mut self, number: usize, conn: ConnId, errand: Errand, to: Option<usize>) {
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
        let to = to.or(self.plan.born_at.filter(|_| matches!(errand, Errand::Begin(_))));
        let told = to.and_then(|slot| self.slots.get(slot).copied().flatten());
        let picked = match probing {
            _ if told.is_some() => told,
            Some(turn) if !nodes.is_empty() => nodes.get(turn % nodes.len()).copied(),
            _ => self.rng.pick(&nodes),
        };
        let session = self.clients[number].session.clone();
        let Some(at) = picked else {
            self.conns.insert(
                conn,
                Conn { client: number, ingress: Incarnation(0), whole: true, tells_until: 0 },
            );
            self.after(20, Happening::Tells { conn, told: Told::Cut });
            return;
        };
        let session = session.filter(|_| !matches!(errand, Errand::Begin(_)));
        let name = self.name(at);
        let text = describe(&errand);
        self.note(|| format!("c{number} {conn:x} -> {name} {text}"));
        let whole = Conn { client: number, ingress: at, whole: true, tells_until: 0 };
        self.conns.insert(conn, whole);
        let after = self.rng.between(0, 5);
        self.after(after, Happening::Arrives { at, conn, session, errand });
    }

    /// An ingress writes to a client's connection.
    pub(super) fn tell(&mut self, conn: ConnId, told: Told) {
        let wait = self.rng.between(0, 5);
        let Some(wire) = self.conns.get_mut(&conn).filter(|wire| wire.whole) else { return };
        let at = (self.now + wait).max(wire.tells_until);
        wire.tells_until = at;
        self.at(at, Happening::Tells { conn, told });
    }

    pub(super) fn tells(&mut self, conn: ConnId, told: Told) {
        let Some(wire) = self.conns.get_mut(&conn).filter(|wire| wire.whole) else { return };
        let (now, number, ingress) = (self.now, wire.client, wire.ingress);
        if matches!(told, Told::Answer(_) | Told::Welcome(..) | Told::End | Told::Cut) {
            wire.whole = false;
            self.conns.remove(&conn);
        }
        let apart = self.processes.get(&ingress).filter(|process| process.split);
        let apart = apart.map(|process| process.held_a_lease(now));
        self.note(|| format!("c{number} {conn:x} <- {}", describe_told(&told)));
        if let (Some(holds), Some(session)) = (apart, self.clients[number].session.clone()) {
            self.checker.told_apart(session, &told, holds);
        }
        let is_told = matches!(told, Told::Answer(Answer::Ended));
        let mut does = Vec::new();
        if let Some(client) = self.clients.get_mut(number) {
            let before = client.phase;
            client.heard(self.now, conn, told, &mut does);
            if client.phase == Phase::Ended
                && before != Phase::Ended
                && let Some(session) = client.session.clone()
            {
                // Its owner says that it is unknown as soon as it was asked for the end.
                let record = self.redis.record(now, &session);
                let is_written = record.is_some_and(|r| r.standing == Standing::Ended);
                if is_told || is_written {
                    self.checker.ended(now, session);
                }
            }
        }
        self.does(number, does);
    }

    /// Every connection to a process that is no more breaks.
    pub(super) fn cut_clients_of(&mut self, incarnation: Incarnation, after: u64) {
        let seen = self.now + after;
        let gone: Vec<(ConnId, u64)> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.ingress == incarnation && conn.whole)
            // What was written before is still read.
            .map(|(conn, wire)| (*conn, wire.tells_until.max(seen)))
            .collect();
        for (conn, at) in gone {
            self.at(at, Happening::Tells { conn, told: Told::Cut });
        }
    }
}

/// An errand in few words.
pub(super) fn describe(errand: &Errand) -> String {
    match errand {
        Errand::Begin(_) => "begin".to_owned(),
        Errand::Post(message) => {
            let raw = message.line();
            let text = String::from_utf8_lossy(&raw);
            let short: String = text.chars().skip(16).take(110).collect();
            format!("POST {short}")
        }
        Errand::Listen(None) => "GET".to_owned(),
        Errand::Listen(Some(after)) => format!("GET after {after}"),
        Errand::Delete => "DELETE".to_owned(),
    }
}

fn describe_told(told: &Told) -> String {
    match told {
        Told::Welcome(session) => format!("welcome to {}", session.as_str()),
        Told::Answer(conversation::Answer::Json(data)) => {
            format!("json {}", String::from_utf8_lossy(data))
        }
        Told::Answer(answer) => format!("{answer:?}"),
        Told::Frame(conversation::Frame::Message { id, data }) => {
            let id = id.map_or("-".to_owned(), |id| id.to_string());
            format!("{id} {}", String::from_utf8_lossy(data))
        }
        Told::Frame(conversation::Frame::Cursor { id, .. }) => format!("cursor {id}"),
        other => format!("{other:?}"),
    }
}

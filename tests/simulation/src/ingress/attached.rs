//! A connection that is attached to an owner: what it receives, and how it continues with the next
//! owner if the owner is lost.

use ownership::ReplyEvent;

use super::*;

/// How long a call waits for a link to the owner, in milliseconds; afterwards it was not started.
const LINK_PATIENCE: u64 = 200;

/// How long clients are told to wait before they reconnect to another node, in milliseconds.
const RETRY: u32 = 1_000;

impl World {
    /// Sends the request to the owner. If the request failed before, the owner is first asked
    /// whether it has the session, or takes it over.
    pub(super) fn attach(&mut self, at: Incarnation, conn: ConnId, owner: Incarnation) {
        let self_claims = self.rules.self_claims;
        let Some(connection) = self.connection(at, conn) else { return };
        let asks = owner != at && self_claims && connection.is_fresh();
        self.reach(at, conn, owner, asks);
    }

    /// Asks another node to take the session over.
    pub(super) fn ask(&mut self, at: Incarnation, conn: ConnId, taker: Incarnation) {
        self.reach(at, conn, taker, true);
    }

    fn reach(&mut self, at: Incarnation, conn: ConnId, owner: Incarnation, asks: bool) {
        if let Some((from, call)) = self.take_call(at, conn) {
            let answer = match owner == at {
                true => Answer::Nothing,
                // The caller then finds the session at that node itself.
                false => Answer::Refused(Refusal::Moved),
            };
            return self.answer_call(at, from, &call, answer);
        }
        let Some(connection) = self.connection(at, conn) else { return };
        connection.attachment += 1;
        connection.owner = Some(owner);
        connection.asks = asks;
        let call = Call {
            conn,
            attachment: connection.attachment,
            session: connection.session.clone(),
            request: (!asks).then(|| connection.route.request().clone()),
        };
        if owner == at {
            connection.seeks = false;
            self.receive_call(at, at, call);
        } else if self.peer_send(at, owner, Peer::Call(call)) {
            if let Some(connection) = self.connection(at, conn) {
                connection.seeks = false;
            }
        } else {
            // Nothing was sent: the link is down. Checks whether its other end is up.
            self.dial(at, owner);
            self.again_in(at, conn, LINK_PATIENCE);
        }
    }

    /// A node that was asked to take the session over answers, or was lost.
    fn receive_take_up_answer(&mut self, at: Incarnation, conn: ConnId, answer: Option<Answer>) {
        let Some(connection) = self.connection(at, conn) else { return };
        match (connection.route.take_over_answered(answer), connection.owner) {
            (TakeOverAnswer::IsOwner, Some(owner)) => self.reach(at, conn, owner, false),
            (TakeOverAnswer::IsOwner, None) => self.wait(at, conn),
            (TakeOverAnswer::Step(next), _) => self.proceed(at, conn, next),
        }
    }

    pub(crate) fn call_not_started(&mut self, at: Incarnation, conn: ConnId, attachment: u64) {
        let Some(connection) = self.connection(at, conn) else { return };
        if connection.attachment == attachment {
            let next = connection.route.not_started();
            self.proceed(at, conn, next);
        }
    }

    /// The owner of the session sends something to a connection.
    pub(crate) fn receive_reply(
        &mut self,
        at: Incarnation,
        conn: ConnId,
        attachment: u64,
        reply: PeerReply,
    ) {
        let numbered = self.rules.numbers_attachments;
        let Some(connection) = self.connection(at, conn) else { return };
        if numbered && connection.attachment != attachment {
            return;
        }
        if connection.asks {
            let answer = match reply {
                PeerReply::Answer(answer) => Some(answer),
                _ => None,
            };
            return self.receive_take_up_answer(at, conn, answer);
        }
        let route = &mut connection.route;
        let next = match reply {
            PeerReply::Answer(answer) => route.reply_received(ReplyEvent::Answer(answer)),
            PeerReply::Open { welcome, at } => {
                route.reply_received(ReplyEvent::Open { welcome, at })
            }
            PeerReply::Frame(frame) => route.reply_received(ReplyEvent::Frame(frame)),
            PeerReply::Finish(Ending::Abort) => route.reply_received(ReplyEvent::Abort),
            PeerReply::Finish(Ending::Moved) => route.reply_received(ReplyEvent::Moved),
            PeerReply::Finish(_) => route.stream_ended(),
            PeerReply::Lost => route.owner_lost(),
        };
        self.proceed(at, conn, next);
    }

    /// Performs the next step of the route.
    pub(super) fn proceed(&mut self, at: Incarnation, conn: ConnId, next: RouteStep) {
        let Some(process) = self.processes.get_mut(&at) else { return };
        let now = process.clock(self.now);
        let Some(connection) = process.connections.get_mut(&conn) else { return };
        match next {
            RouteStep::Forward(sent) => {
                if is_progress(&sent) {
                    connection.retry.progress();
                }
                self.send_to_client(at, conn, sent);
            }
            RouteStep::AwaitOwner => connection.retry.attached(now),
            RouteStep::Locate | RouteStep::LocateLater => self.wait(at, conn),
            RouteStep::Finish(rest) => self.finish(at, conn, rest),
        }
    }

    /// Looks up the session again after a delay, or gives up.
    pub(super) fn wait(&mut self, at: Incarnation, conn: ConnId) {
        if let Some((from, call)) = self.take_call(at, conn) {
            return self.answer_call(at, from, &call, Answer::Refused(Refusal::Moved));
        }
        let hold = self.plan.hold;
        let Some(process) = self.processes.get_mut(&at) else { return };
        let now = process.clock(self.now);
        let Some(connection) = process.connections.get_mut(&conn) else { return };
        connection.attachment += 1;
        connection.attempt += 1;
        connection.owner = None;
        connection.seeks = true;
        match connection.retry.next_wait(now, hold) {
            // Not within this call, which may hold the session that is looked up.
            Wait::Now => self.again_in(at, conn, 0),
            Wait::After(millis) => self.again_in(at, conn, millis),
            Wait::GiveUp => self.give_up(at, conn),
        }
    }

    /// The store has the end of the session, or no data of it.
    pub(super) fn gone(&mut self, at: Incarnation, conn: ConnId) {
        if let Some((from, call)) = self.take_call(at, conn) {
            let unknown = Answer::Refused(Refusal::UnknownSession);
            return self.answer_call(at, from, &call, unknown);
        }
        let Some(connection) = self.connection(at, conn) else { return };
        let next = connection.route.session_gone();
        self.proceed(at, conn, next);
    }

    /// Sends the remaining events to the client and ends the connection.
    fn finish(&mut self, at: Incarnation, conn: ConnId, rest: VecDeque<ReplyEvent>) {
        self.drop_keeper(at, conn);
        let is_over = matches!(rest.back(), Some(ReplyEvent::Answer(_) | ReplyEvent::Abort));
        for sent in rest {
            self.send_to_client(at, conn, sent);
        }
        if !is_over {
            self.answer_client(conn, client::ClientEvent::End);
        }
    }

    fn send_to_client(&mut self, at: Incarnation, conn: ConnId, sent: ReplyEvent) {
        let sent = match sent {
            ReplyEvent::Answer(Answer::Welcome(_)) => match self.new_session_of(at, conn) {
                Some(session) => client::ClientEvent::Welcome(session),
                None => return,
            },
            ReplyEvent::Answer(answer) => client::ClientEvent::Answer(answer),
            ReplyEvent::Open { .. } => client::ClientEvent::Open,
            ReplyEvent::Frame(frame) => client::ClientEvent::Frame(frame),
            ReplyEvent::Abort | ReplyEvent::Moved | ReplyEvent::LeaseLost { .. } => {
                client::ClientEvent::Cut
            }
        };
        self.answer_client(conn, sent);
    }

    /// Takes the call of a peer for which this session was looked up. It no longer waits.
    fn take_call(&mut self, at: Incarnation, conn: ConnId) -> Option<(Incarnation, Call)> {
        self.connection(at, conn)?.for_peer.as_ref()?;
        self.processes.get_mut(&at)?.connections.remove(&conn)?.for_peer
    }

    fn answer_call(&mut self, at: Incarnation, from: Incarnation, call: &Call, answer: Answer) {
        let reply = PeerReply::Answer(answer);
        let (conn, attachment) = (call.conn, call.attachment);
        self.peer_send(at, from, Peer::Reply { conn, attachment, reply });
    }

    fn drop_keeper(&mut self, at: Incarnation, conn: ConnId) {
        if let Some(process) = self.processes.get_mut(&at) {
            process.connections.remove(&conn);
        }
    }

    /// The owner is gone: the connection continues with the next one.
    fn reattach(&mut self, at: Incarnation, conn: ConnId) {
        let Some(connection) = self.connection(at, conn) else { return };
        if connection.asks {
            return self.receive_take_up_answer(at, conn, None);
        }
        let next = connection.route.owner_lost();
        self.proceed(at, conn, next);
    }

    /// As [`World::lose_owner`], if the owner can still be notified.
    pub(crate) fn leave_owner(&mut self, at: Incarnation, owner: Incarnation) {
        let Some(process) = self.processes.get(&at) else { return };
        let attached =
            process.connections.iter().filter(|(_, connection)| connection.is_attached_to(owner));
        let attached: Vec<_> =
            attached.map(|(conn, connection)| (*conn, connection.attachment)).collect();
        if !attached.is_empty() {
            // The product ends its links to that node.
            self.checker.link_broke(self.now, at, owner);
        }
        for (conn, attachment) in attached {
            self.peer_send(at, owner, Peer::Gone { conn, attachment });
        }
        self.lose_owner(at, owner);
    }

    /// Every connection that was attached to an owner continues at another owner.
    pub(crate) fn lose_owner(&mut self, at: Incarnation, owner: Incarnation) {
        let Some(process) = self.processes.get_mut(&at) else { return };
        process.known.retain(|_, known| *known != owner);
        let lost: Vec<ConnId> = process
            .connections
            .iter()
            .filter(|(_, connection)| connection.is_attached_to(owner))
            .map(|(conn, _)| *conn)
            .collect();
        for conn in lost {
            self.reattach(at, conn);
        }
    }

    /// The request was held for as long as permitted.
    pub(super) fn give_up(&mut self, at: Incarnation, conn: ConnId) {
        let secs = self.plan.hold / 1_000;
        if let Some((from, call)) = self.take_call(at, conn) {
            return self.answer_call(at, from, &call, Answer::Refused(Refusal::Moved));
        }
        let Some(connection) = self.connection(at, conn) else { return };
        let rest = connection.route.hold_time_over(secs);
        let name = connection.session.as_str().to_owned();
        self.note(|| format!("{conn:x} for {name} is given up"));
        self.checker.gave_up += 1;
        self.finish(at, conn, rest);
    }

    /// The node ends now: answers the requests that still wait here.
    pub(crate) fn give_up_all(&mut self, at: Incarnation) {
        let Some(process) = self.processes.get(&at) else { return };
        let waiting: Vec<ConnId> = process.connections.keys().copied().collect();
        for conn in waiting {
            self.give_up(at, conn);
        }
    }

    /// The node is about to end: ends the streams in order that their clients can resume.
    pub(crate) fn end_primed(&mut self, at: Incarnation) {
        let Some(process) = self.processes.get_mut(&at) else { return };
        let mut ending = Vec::new();
        for (conn, connection) in &mut process.connections {
            if let Some(rest) = connection.route.node_leaves(RETRY) {
                ending.push((*conn, connection.attachment, connection.owner, rest));
            }
        }
        for (conn, attachment, owner, rest) in ending {
            self.finish(at, conn, rest);
            if let Some(owner) = owner.filter(|owner| *owner != at) {
                self.peer_send(at, owner, Peer::Gone { conn, attachment });
            } else {
                self.receive_end(at, at, conn, attachment);
            }
        }
    }

    /// A client closed its connection to this node.
    pub(crate) fn hung_up(&mut self, at: Incarnation, conn: ConnId) {
        self.conns.remove(&conn);
        let Some(process) = self.processes.get_mut(&at) else { return };
        let Some(connection) = process.connections.remove(&conn) else { return };
        let attachment = connection.attachment;
        match connection.owner {
            Some(owner) if owner == at => self.receive_end(at, at, conn, attachment),
            Some(owner) => {
                self.peer_send(at, owner, Peer::Gone { conn, attachment });
            }
            None => {}
        }
    }
}

//! A connection that is brought to an owner: what it is told, and how it goes on with the
//! next owner where one is lost.

use super::*;

impl World {
    pub(super) fn attach(&mut self, at: Incarnation, conn: ConnId, owner: Incarnation) {
        self.attach_and(at, conn, owner, false);
    }

    pub(super) fn attach_and(
        &mut self,
        at: Incarnation,
        conn: ConnId,
        owner: Incarnation,
        claim: bool,
    ) {
        let Some(keeper) = self.keeper(at, conn) else { return };
        if conn >= PHANTOM {
            // Somebody else owns it, or it is here by now.
            if let Some(process) = self.processes.get_mut(&at) {
                process.keepers.remove(&conn);
            }
            return;
        }
        keeper.attachment += 1;
        keeper.owner = Some(owner);
        keeper.sent = true;
        let call = Call {
            conn,
            attachment: keeper.attachment,
            session: keeper.session.clone(),
            errand: keeper.errand.clone(),
            again: keeper.again,
            claim,
        };
        if owner == at {
            if let Some(keeper) = self.keeper(at, conn) {
                keeper.held_since = None;
            }
            self.hear_call(at, at, call);
        } else if self.peer_send(at, owner, Peer::Call(call)) {
            if let Some(keeper) = self.keeper(at, conn) {
                keeper.held_since = None;
            }
        } else {
            // Nothing was sent: the link is down. Is its other end?
            if let Some(keeper) = self.keeper(at, conn) {
                keeper.sent = false;
                keeper.fresh = true;
            }
            self.dial(at, owner);
            self.again_in(at, conn, 200);
        }
    }

    pub(in crate::simulation) fn hear_not_started(
        &mut self,
        at: Incarnation,
        conn: ConnId,
        attachment: u64,
    ) {
        let now = self.now;
        let Some(keeper) = self.keeper(at, conn) else { return };
        if keeper.attachment != attachment {
            return;
        }
        keeper.sent = false;
        keeper.fresh = true;
        keeper.owner = None;
        keeper.held_since.get_or_insert(now);
        self.again_in(at, conn, 50);
    }

    /// A connection is told something by the owner of its session.
    pub(in crate::simulation) fn hear_said(
        &mut self,
        at: Incarnation,
        conn: ConnId,
        attachment: u64,
        said: Said,
    ) {
        let numbered = self.rules.numbers_attachments;
        let Some(keeper) = self.keeper(at, conn) else { return };
        if numbered && keeper.attachment != attachment {
            return;
        }
        if !matches!(said, Said::Lost | Said::Answer(Answer::Refused(Refusal::Moved))) {
            keeper.unheard_since = None;
        }
        self.said_here(at, conn, said);
    }

    pub(super) fn said_here(&mut self, at: Incarnation, conn: ConnId, said: Said) {
        let Some(keeper) = self.keeper(at, conn) else { return };
        if conn >= PHANTOM {
            self.drop_keeper(at, conn);
            return;
        }
        match said {
            Said::Lost | Said::Finish(Ending::Moved) => self.reattach(at, conn),
            Said::Answer(Answer::Refused(Refusal::Moved)) => {
                let attachment = keeper.attachment;
                self.hear_not_started(at, conn, attachment);
            }
            Said::Answer(answer) => {
                if keeper.opened {
                    self.finish_open(at, conn, &answer);
                } else {
                    self.drop_keeper(at, conn);
                    let told = match answer {
                        Answer::Welcome(_) => return self.welcome(conn, at),
                        other => Told::Answer(other),
                    };
                    self.answer_client(conn, told);
                }
            }
            Said::Open(cursor) => {
                keeper.cursor = cursor.or(keeper.cursor);
                if !std::mem::replace(&mut keeper.opened, true) {
                    self.answer_client(conn, Told::Open);
                }
            }
            Said::Frame(frame) => {
                if let Frame::Cursor { id, .. } | Frame::Message { id: Some(id), .. } = &frame {
                    keeper.cursor = Some(*id);
                }
                keeper.settled |= keeper.is_last_word(&frame);
                self.answer_client(conn, Told::Frame(frame));
            }
            Said::Finish(ending) => {
                self.drop_keeper(at, conn);
                let told = if ending == Ending::Abort { Told::Cut } else { Told::End };
                self.answer_client(conn, told);
            }
        }
    }

    fn welcome(&mut self, conn: ConnId, at: Incarnation) {
        let session = self.newborn(at, conn);
        if let Some(session) = session {
            self.answer_client(conn, Told::Welcome(session));
        }
    }

    /// What a resumed stream was answered with, on a connection that is a stream already.
    fn finish_open(&mut self, at: Incarnation, conn: ConnId, answer: &Answer) {
        let Some(keeper) = self.keeper(at, conn) else { return };
        let request = keeper.owed();
        self.drop_keeper(at, conn);
        match (answer, request) {
            (Answer::Refused(Refusal::NothingMore), _) => self.answer_client(conn, Told::End),
            (_, Some(id)) => {
                let words = "the session was lost with its node";
                let error = Response::error(Some(id), -32_000, words, None);
                let frame = Frame::Message { id: None, data: error.raw().clone() };
                self.answer_client(conn, Told::Frame(frame));
                self.answer_client(conn, Told::End);
                self.checker.gave_up += 1;
            }
            _ => self.answer_client(conn, Told::Cut),
        }
    }

    fn drop_keeper(&mut self, at: Incarnation, conn: ConnId) {
        if let Some(process) = self.processes.get_mut(&at) {
            process.keepers.remove(&conn);
        }
    }

    /// Its owner is gone: the connection goes on with the next one.
    fn reattach(&mut self, at: Incarnation, conn: ConnId) {
        let (now, marks) = (self.now, self.rules.marks_again);
        let Some(keeper) = self.keeper(at, conn) else { return };
        keeper.attachment += 1;
        keeper.owner = None;
        keeper.fresh = true;
        keeper.held_since.get_or_insert(now);
        let sent = std::mem::replace(&mut keeper.sent, false);
        keeper.again |= sent && marks;
        if keeper.opened {
            match keeper.cursor {
                Some(cursor) => keeper.errand = Errand::Listen(Some(cursor.to_string())),
                None => return self.give_up(at, conn),
            }
        }
        self.seek(at, conn);
    }

    /// As [`World::lose_owner`], where the owner is still there to be told.
    pub(in crate::simulation) fn leave_owner(&mut self, at: Incarnation, owner: Incarnation) {
        let Some(process) = self.processes.get(&at) else { return };
        let attached = process.keepers.iter().filter(|(_, keeper)| keeper.is_attached_to(owner));
        let attached: Vec<_> = attached.map(|(conn, keeper)| (*conn, keeper.attachment)).collect();
        for (conn, attachment) in attached {
            self.peer_send(at, owner, Peer::Gone { conn, attachment });
        }
        self.lose_owner(at, owner);
    }

    /// Every connection that was attached to an owner goes on elsewhere.
    pub(in crate::simulation) fn lose_owner(&mut self, at: Incarnation, owner: Incarnation) {
        let Some(process) = self.processes.get_mut(&at) else { return };
        process.known.retain(|_, known| *known != owner);
        let lost: Vec<ConnId> = process
            .keepers
            .iter()
            .filter(|(_, keeper)| keeper.is_attached_to(owner))
            .map(|(conn, _)| *conn)
            .collect();
        for conn in lost {
            self.reattach(at, conn);
        }
    }

    /// It was held for as long as it may be.
    pub(super) fn give_up(&mut self, at: Incarnation, conn: ConnId) {
        let Some(keeper) = self.keeper(at, conn) else { return };
        let name = keeper.session.as_str().to_owned();
        let opened = keeper.opened;
        let request = keeper.owed();
        self.note(|| format!("{conn:x} for {name} is given up"));
        self.checker.gave_up += 1;
        self.drop_keeper(at, conn);
        if conn >= PHANTOM {
            return;
        }
        let Some(id) = request else {
            let told = if opened {
                Told::Cut
            } else {
                Told::Answer(Answer::Refused(Refusal::Unavailable))
            };
            self.answer_client(conn, told);
            return;
        };
        let error = Response::error(Some(id), -32_000, "the session cannot be reached", None);
        let data = error.raw().clone();
        if opened {
            self.answer_client(conn, Told::Frame(Frame::Message { id: None, data }));
            self.answer_client(conn, Told::End);
        } else {
            self.answer_client(conn, Told::Answer(Answer::Json(data)));
        }
    }

    /// The node goes now: whoever still waits here is told.
    pub(in crate::simulation) fn give_up_all(&mut self, at: Incarnation) {
        let Some(process) = self.processes.get(&at) else { return };
        let waiting: Vec<ConnId> = process.keepers.keys().copied().collect();
        for conn in waiting {
            self.give_up(at, conn);
        }
    }

    /// The node is to go: streams that their clients can come back to end in order.
    pub(in crate::simulation) fn end_primed(&mut self, at: Incarnation) {
        let Some(process) = self.processes.get(&at) else { return };
        let primed: Vec<(ConnId, u64, Option<Incarnation>)> = process
            .keepers
            .iter()
            .filter(|(_, keeper)| keeper.opened && keeper.cursor.is_some())
            .map(|(conn, keeper)| (*conn, keeper.attachment, keeper.owner))
            .collect();
        for (conn, attachment, owner) in primed {
            self.drop_keeper(at, conn);
            self.answer_client(conn, Told::End);
            if let Some(owner) = owner.filter(|owner| *owner != at) {
                self.peer_send(at, owner, Peer::Gone { conn, attachment });
            } else {
                self.hear_gone(at, at, conn, attachment);
            }
        }
    }

    /// A client hung up on this node.
    pub(in crate::simulation) fn hung_up(&mut self, at: Incarnation, conn: ConnId) {
        self.conns.remove(&conn);
        let Some(process) = self.processes.get_mut(&at) else { return };
        let Some(keeper) = process.keepers.remove(&conn) else { return };
        let attachment = keeper.attachment;
        match keeper.owner {
            Some(owner) if owner == at => self.hear_gone(at, at, conn, attachment),
            Some(owner) => {
                self.peer_send(at, owner, Peer::Gone { conn, attachment });
            }
            None => {}
        }
    }
}

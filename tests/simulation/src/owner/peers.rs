//! Requests of other nodes to an owner, and the drain of an owner.

use super::*;

impl World {
    /// A request for a session arrives at this node.
    pub(crate) fn receive_call(&mut self, at: Incarnation, from: Incarnation, call: Call) {
        let Some(request) = call.request.clone() else {
            // The record may name this node or no owner: this node checks that itself.
            return self.seek_for_peer(at, from, call);
        };
        let Some(mut owned) = self.take(at, &call.session) else {
            return self.not_started(at, from, &call);
        };
        let numbered = self.rules.numbers_attachments;
        let newer = |sink: &Sink| {
            (sink.from, sink.conn) == (from, call.conn) && sink.attachment >= call.attachment
        };
        if numbered && owned.sinks.iter().any(newer) {
            return self.put(at, &call.session, owned);
        }
        if owned.over || !self.may_act(at, &call.session, &mut owned) {
            self.not_started(at, from, &call);
            // The request is a reason to claim the session now.
            return self.live(at, &call.session, owned);
        }
        let id = self.new_sink(at);
        let Call { conn, attachment, session, .. } = call;
        owned.sinks.push(Sink { id, from, conn, attachment });
        let event = request.event(id, from != at);
        owned.following.push_back(event);
        self.live(at, &session, owned);
    }

    pub(super) fn not_started(&mut self, at: Incarnation, from: Incarnation, call: &Call) {
        let (conn, attachment) = (call.conn, call.attachment);
        if from == at {
            self.call_not_started(at, conn, attachment);
        } else {
            self.peer_send(at, from, Peer::NotStarted { conn, attachment });
        }
    }

    /// A connection is gone, or has another attachment.
    pub(crate) fn receive_end(
        &mut self,
        at: Incarnation,
        from: Incarnation,
        conn: ConnId,
        attachment: u64,
    ) {
        let gone =
            |sink: &Sink| (sink.from, sink.conn, sink.attachment) == (from, conn, attachment);
        self.close_sinks(at, gone);
        self.forget_calls(at, |by, call| {
            (by, call.conn, call.attachment) == (from, conn, attachment)
        });
    }

    /// Closes every connection that came over a link that broke.
    pub(crate) fn lose_callers(&mut self, at: Incarnation, peer: Incarnation) {
        self.close_sinks(at, |sink| sink.from == peer);
        self.forget_calls(at, |by, _| by == peer);
    }

    pub(super) fn close_sinks(&mut self, at: Incarnation, gone: impl Fn(&Sink) -> bool) {
        let Some(process) = self.processes.get(&at) else { return };
        let mut closing = Vec::new();
        for (session, owned) in &process.sessions {
            let sinks = owned.sinks.iter().filter(|sink| gone(sink));
            closing.extend(sinks.map(|sink| (session.clone(), sink.id)));
        }
        for (session, sink) in closing {
            let Some(mut owned) = self.take(at, &session) else { continue };
            owned.sinks.retain(|other| other.id != sink);
            owned.following.push_back(Event::SinkClosed { sink });
            self.live(at, &session, owned);
        }
    }

    // ---- Leaving ----

    pub(crate) fn hand_over_all(&mut self, at: Incarnation, at_once: bool) {
        let Some(process) = self.processes.get(&at) else { return };
        let sessions: Vec<SessionId> = process.sessions.keys().cloned().collect();
        for session in sessions {
            self.happened(at, &session, Event::HandOver { at_once });
        }
    }

    /// The drain time of the requests in flight is over.
    pub(crate) fn drain_now(&mut self, at: Incarnation) {
        self.hand_over_all(at, true);
        self.end_primed(at);
        self.after(500, Happening::Rings(at, Timer::Leave));
    }

    /// The drained process ends as soon as no session or connection needs it.
    pub(crate) fn leave(&mut self, at: Incarnation) {
        let Some(process) = self.processes.get(&at) else { return };
        let slot = process.slot;
        if self.now >= process.draining_since + self.plan.drain + END_GRACE {
            self.give_up_all(at);
        } else if !process.sessions.is_empty() || !process.connections.is_empty() {
            self.hand_over_all(at, true);
            self.end_primed(at);
            self.after(500, Happening::Rings(at, Timer::Leave));
            return;
        }
        self.kill(at, 2, true);
        self.after(200, Happening::Starts(slot));
    }
}

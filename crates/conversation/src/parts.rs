//! The parts of a session, and the rules that span them: the end of a step, and the end of a
//! session.
//!
//! Each part keeps its own invariants, in a file of its own. Rules that span several parts and
//! belong to one subject have a type that borrows these parts: [`Answering`], [`Delivery`],
//! [`Resuming`], [`Admission`], [`IdleTimes`]. This module has the rules that need nearly all
//! parts: events of the client (`client_events`), and events of the server (`server_events`).

use std::sync::Arc;

use protocol::{Method, Request, Response};

use crate::admission::Admission;
use crate::answering::Answering;
use crate::checkpoint::OpenServerRequest;
use crate::delivery::Delivery;
use crate::earliest::Earliest;
use crate::ended_requests::EndedRequests;
use crate::entry::Mark;
use crate::exchange::{Exchange, Route};
use crate::handshake::Handshake;
use crate::idle::IdleTimes;
use crate::kept_results::KeptResults;
use crate::lifecycle::{Leaving, Lifecycle};
use crate::mirroring::Mirroring;
use crate::persisted::Persisted;
use crate::posts::Posts;
use crate::restore::Restored;
use crate::resuming::Resuming;
use crate::server_link::ServerLink;
use crate::server_requests::{ServerRequests, request_id};
use crate::setup::Setup;
use crate::step_context::StepContext;
use crate::streams::Streams;
use crate::tools::Tools;
use crate::waiting::WaitingMessages;
use crate::write_barrier::{StorePosition, WriteBarrier, unacknowledged};
use crate::{BudgetVerdict, Cause, Effect, Ending, Event, Millis, OwnerTag, SavedLink, SinkId};

mod client_events;
mod server_events;

/// The parts of a session. Most sessions are idle most of the time, so a part that is mostly
/// empty takes only a pointer.
pub(crate) struct Parts {
    pub(crate) lifecycle: Lifecycle,
    pub(crate) handshake: Handshake,
    link: ServerLink,
    pub(crate) posts: Posts,
    ended: EndedRequests,
    kept: KeptResults,
    pub(crate) streams: Streams,
    pub(crate) waiting: WaitingMessages,
    pub(crate) server_requests: ServerRequests,
    pub(crate) persisted: Persisted,
    barrier: WriteBarrier,
    tools: Tools,
    mirroring: Mirroring,
}

impl Parts {
    pub(crate) fn new(owner_tag: OwnerTag, seed: u64, now: Millis) -> Self {
        Self::from_restored(
            Restored {
                handshake: Handshake::new(),
                streams: Streams::new(owner_tag, seed),
                persisted: Persisted::default(),
                ended: EndedRequests::default(),
            },
            now,
        )
    }

    /// The restored parts of a session, before what its last owner had begun is settled.
    pub(crate) fn from_restored(restored: Restored, now: Millis) -> Self {
        let Restored { handshake, streams, persisted, ended } = restored;
        let mut link = ServerLink::new();
        if handshake.saved_link().is_some() {
            link.carry_on();
        }
        Self {
            lifecycle: Lifecycle::new(now),
            handshake,
            link,
            posts: Posts::new(),
            ended,
            kept: KeptResults::default(),
            streams,
            waiting: WaitingMessages::default(),
            server_requests: ServerRequests::new(),
            persisted,
            barrier: WriteBarrier::default(),
            tools: Tools::default(),
            mirroring: Mirroring::default(),
        }
    }

    /// Borrows the parts that deliver messages to the client, and beside them the link to the
    /// server and the known tools.
    fn split_parts(&mut self) -> (Delivery<'_>, &mut ServerLink, &mut Mirroring) {
        let answering = Answering {
            handshake: &self.handshake,
            tools: &self.tools,
            posts: &mut self.posts,
            ended: &mut self.ended,
            kept: &mut self.kept,
            streams: &mut self.streams,
            persisted: &mut self.persisted,
            barrier: &mut self.barrier,
        };
        let (server_requests, waiting) = (&mut self.server_requests, &mut self.waiting);
        let delivery = Delivery { answering, server_requests, waiting };
        (delivery, &mut self.link, &mut self.mirroring)
    }

    fn delivery(&mut self) -> Delivery<'_> {
        self.split_parts().0
    }

    fn answering(&mut self) -> Answering<'_> {
        self.delivery().answering
    }

    fn resuming(&mut self) -> Resuming<'_> {
        let (delivery, link, _) = self.split_parts();
        Resuming { delivery, link }
    }

    fn admission(&mut self) -> Admission<'_> {
        let is_budget_exhausted = self.lifecycle.is_budget_exhausted();
        let (delivery, link, mirroring) = self.split_parts();
        Admission { delivery, link, mirroring, is_budget_exhausted }
    }

    fn idle_times<'a>(&'a self, setup: &'a Setup) -> IdleTimes<'a> {
        IdleTimes {
            setup,
            lifecycle: &self.lifecycle,
            handshake: &self.handshake,
            link: &self.link,
            posts: &self.posts,
            streams: &self.streams,
            server_requests: &self.server_requests,
            persisted: &self.persisted,
            mirroring: &self.mirroring,
        }
    }

    /// Ends or runs again what a lost owner had begun. Standalone streams stay open: their
    /// clients resume them.
    pub(crate) fn settle_restored(
        &mut self,
        context: &mut StepContext<'_>,
        server_requests: Vec<OpenServerRequest>,
    ) {
        let asked: Vec<u64> = server_requests.iter().map(|(_, stream, _)| *stream).collect();
        // A server request is withdrawn before the final response to its request.
        if !mutant!("questions_are_not_withdrawn") {
            for server_request in server_requests {
                self.delivery().withdraw_of_former_owner(context, server_request);
            }
        }
        if !mutant!("settle_no_stream") {
            for stream in self.streams.open_request_streams() {
                let has_open = asked.contains(&stream);
                self.admission().settle_stream(context, stream, has_open);
            }
        }
        if self.posts.exchanges().iter().any(|exchange| exchange.position.is_some()) {
            self.link.open_link(context);
        }
        self.streams.close_deserted_for_long(context);
    }

    /// The end of every step: returns what it wrote as effects.
    pub(crate) fn finish_step(&mut self, context: &mut StepContext<'_>) {
        if self.handshake.is_over() {
            return;
        }
        self.prepare_to_leave(context);
        self.streams.write_positions();
        self.streams.trim_log(context, &self.barrier, &self.posts, &self.server_requests);
        // The state first: the owner saves it before it appends the entries that changed with it.
        if mutant!("hand_out_entries_before_the_state") {
            context.effects.extend(self.streams.hand_out());
        }
        if self.lifecycle.leaving().is_some() {
            self.persisted.save_whole();
        }
        self.persisted.save(context, &self.handshake);
        context.effects.extend(self.streams.hand_out());
        if mutant!("tell_before_the_append") {
            self.on_appended(context, self.streams.log().newest());
        }
        self.barrier.release_answers(context, self.store_position());
        self.leave_owner(context);
        self.posts.shrink();
        self.kept.shrink();
        self.streams.shrink();
    }

    /// The log holds everything up to `entry`: writes what waited for that.
    pub(crate) fn on_appended(&mut self, context: &mut StepContext<'_>, entry: u64) {
        let version = self.persisted.held_version();
        let through = self.barrier.sendable_through(StorePosition { entry, version });
        self.streams.acknowledge_entries(context, self.handshake.revision(), through);
    }

    /// The record holds this version of the state.
    pub(crate) fn on_saved(&mut self, context: &mut StepContext<'_>, version: u64) {
        self.persisted.note_saved(version);
        self.on_appended(context, self.streams.log().acknowledged());
    }

    fn store_position(&self) -> StorePosition {
        let entry = self.streams.log().acknowledged();
        StorePosition { entry, version: self.persisted.held_version() }
    }

    /// Has every request its final response, and every POST its answer?
    pub(crate) fn has_no_work(&self) -> bool {
        self.posts.is_empty() && !self.mirroring.has_parked()
    }

    /// Does the store hold everything that was written, and was every answer given?
    fn is_stored(&self, setup: &Setup) -> bool {
        self.streams.log().is_held()
            && self.persisted.is_held(setup.duplex.is_some(), &self.handshake)
            && self.barrier.has_no_answers()
    }

    /// Is nothing in flight, and everything stored?
    pub(crate) fn is_quiet(&self, setup: &Setup) -> bool {
        self.has_no_work() && self.is_stored(setup)
    }

    /// The next deadline.
    pub(crate) fn deadline(&self, setup: &Setup) -> Option<Millis> {
        let (limits, idle) = (&setup.limits, self.idle_times(setup));
        let mut earliest = Earliest::new();
        self.posts.note_deadlines(limits, &mut earliest);
        self.streams.note_deadlines(limits, &mut earliest);
        self.server_requests.note_deadlines(&mut earliest);
        self.barrier.note_deadlines(&mut earliest);
        self.kept.note_deadlines(&mut earliest);
        self.link.note_deadline(&mut earliest);
        self.mirroring.note_deadlines(&mut earliest);
        earliest.add_deadline_if_any(idle.idle_at());
        earliest.add_deadline_if_any(idle.sleeps_at());
        earliest.add_deadline_if_any(idle.link_idles_at());
        earliest.get()
    }

    /// Performs what is due.
    pub(crate) fn on_deadline(&mut self, context: &mut StepContext<'_>) {
        let now = context.now;
        let is_due = |at: Option<Millis>| at.is_some_and(|at| at <= now);
        if is_due(self.idle_times(context.setup).idle_at()) {
            self.end_session(context, Cause::Idle);
            return;
        }
        if is_due(self.idle_times(context.setup).sleeps_at()) {
            self.lifecycle.fall_asleep();
        }
        self.close_idle_link(context);
        self.open_link_or_time_out(context);
        self.refuse_late_server_requests(context);
        self.time_out_exchanges(context);
        for (post, data) in self.posts.take_due_progress(context.limits(), now) {
            self.delivery().deliver_message(context, Route::Post(post), data, false);
        }
        for post in self.posts.silent_posts(now) {
            self.answering().upgrade_silent(context, post);
        }
        self.streams.write_withheld(context, &self.barrier);
        self.barrier.refuse_late_answers(context, &unacknowledged(context.limits()));
        self.kept.drop_old(now);
        for stream in self.streams.poll_and_take_pings(context) {
            self.ping_client(context, stream);
        }
    }

    fn close_idle_link(&mut self, context: &mut StepContext<'_>) {
        let idles_at = self.idle_times(context.setup).link_idles_at();
        if idles_at.is_some_and(|at| at <= context.now) {
            self.close_link(context);
        }
    }

    /// Closes the link; the next one begins anew.
    fn close_link(&mut self, context: &mut StepContext<'_>) {
        self.link.close_link(context);
        self.forget_saved_link();
    }

    /// What the link has saved is of no use any more.
    fn forget_saved_link(&mut self) {
        let is_changed = self.handshake.set_saved_link(None);
        self.persisted.note_link_change(is_changed);
    }

    /// The link saved this for the next owner. A duplex session has none.
    pub(crate) fn on_link_saved(&mut self, context: &StepContext<'_>, state: Arc<str>) {
        if !context.is_duplex() {
            let is_changed = self.handshake.set_saved_link(Some(state));
            self.persisted.note_link_change(is_changed);
        }
    }

    /// What a former owner's link saved, if the next link is to carry it on.
    pub(crate) fn saved_link(&self) -> Option<SavedLink> {
        let state = self.handshake.saved_link().filter(|_| self.link.carries_on())?;
        let standalone = self.streams.standalone_positions().map(|position| (None, position));
        let resumed = self.posts.exchanges().iter().filter_map(|exchange| {
            let position = exchange.position.as_deref().cloned()?;
            Some((Some(exchange.id.clone()), position))
        });
        Some(SavedLink {
            definition: self.handshake.definition(),
            state: Arc::clone(state),
            positions: standalone.chain(resumed).collect(),
        })
    }

    /// The server is to be left as soon as it is idle.
    pub(crate) fn on_server_retired(&mut self, context: &mut StepContext<'_>) {
        self.link.note_retired();
        self.close_idle_link(context);
    }

    /// Another session of the tenant needs a server.
    pub(crate) fn on_server_room_wanted(&mut self, context: &mut StepContext<'_>) {
        let makes_room_at = self.idle_times(context.setup).link_makes_room_at();
        if makes_room_at.is_some_and(|at| at <= context.now) {
            self.close_link(context);
        }
    }

    /// The bytes of messages and parameters that the parts keep.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.handshake.bytes()
            + self.link.bytes()
            + self.posts.bytes()
            + self.kept.bytes()
            + self.streams.log().bytes()
            + self.waiting.bytes()
            + self.persisted.bytes()
            + self.barrier.bytes()
            + self.mirroring.bytes()
    }

    /// The bytes that the record and the log keep in the store.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.handshake.bytes() + self.streams.log().bytes() + self.persisted.bytes()
    }

    /// The tenant keeps as much as it may, or less again.
    pub(crate) fn on_budget_verdict(
        &mut self,
        context: &mut StepContext<'_>,
        verdict: BudgetVerdict,
    ) {
        match verdict {
            BudgetVerdict::Available => self.lifecycle.note_budget(false),
            BudgetVerdict::Exhausted => self.lifecycle.note_budget(true),
            BudgetVerdict::Store { exhausted } => self.lifecycle.note_store(exhausted),
            BudgetVerdict::Trim => {
                let Self { streams, barrier, posts, server_requests, .. } = self;
                streams.trim_settled(context, barrier, posts, server_requests);
            }
            BudgetVerdict::Sleep => {
                // Kept results and waiting messages are in no log.
                let keeps_nothing = self.kept.is_empty() && self.waiting.len() == 0;
                if keeps_nothing && self.idle_times(context.setup).may_sleep_now(context.now) {
                    self.close_link(context);
                    self.lifecycle.fall_asleep();
                }
            }
        }
    }

    /// A request got no message for too long, or takes too long altogether (RPC-22).
    fn time_out_exchanges(&mut self, context: &mut StepContext<'_>) {
        let (now, limits) = (context.now, context.limits());
        let had_waiting = self.link.has_undecided() || self.mirroring.has_parked();
        self.mirroring.refuse_late(context);
        let is_due = |exchange: &Exchange| exchange.deadline() <= now;
        while let Some(exchange) = self.posts.take_exchange(is_due) {
            let message = if exchange.ends_at <= now {
                let secs = limits.request_max_secs;
                format!("the server took longer than {secs} s; the request was cancelled")
            } else {
                let secs = limits.request_secs;
                format!("the server sent nothing for {secs} s; the request was cancelled")
            };
            let ended = &mut self.ended;
            self.link.cancel_request(context, ended, &exchange.id, "it took too long");
            let error = Response::error(Some(exchange.id.clone()), crate::REFUSED, &message, None);
            self.delivery().settle_with_error(context, exchange, &error);
        }
        if had_waiting && !self.link.has_undecided() {
            // The list that they waited for gets no answer.
            self.mirroring.give_up_unless_parked();
        }
    }

    /// Pings the client on a standalone stream (PING-02). The response is ignored: the ping only
    /// sends data on the connection.
    fn ping_client(&mut self, context: &StepContext<'_>, stream: u64) {
        if self.server_requests.is_full(context) || !self.handshake.is_live() {
            return;
        }
        let (log, route) = (self.streams.log(), Route::Standalone);
        let id = self.server_requests.add_request(context, log, Method::Ping, None, route);
        let ping = Request::new(request_id(id), Method::Ping, None);
        self.streams.write_event(context, stream, ping.raw().clone(), Mark::Plain);
    }

    /// A connection to the client is closed.
    pub(crate) fn on_sink_closed(&mut self, context: &mut StepContext<'_>, sink: SinkId) {
        if context.setup.duplex == Some(sink) {
            self.end_session(context, Cause::Disconnected);
            return;
        }
        if self.handshake.is_initializing() && self.posts.has_sink(sink) {
            // The client disconnected before it received the session's id, so no request can name
            // it.
            self.end_session(context, Cause::HandshakeFailed);
            return;
        }
        self.barrier.disconnect(sink);
        self.posts.disconnect(sink);
        let has_listened = self.streams.newest_standalone().is_some();
        if self.streams.disconnect(sink) {
            self.lifecycle.note_activity(context.now);
            if has_listened && self.streams.newest_standalone().is_none() {
                self.lifecycle.note_stream_left();
            }
            self.streams.close_deserted(context);
        }
    }

    /// The session's client was revoked. The server hears of each request that it need not finish: it may
    /// serve other sessions, too.
    pub(crate) fn on_revoked(&mut self, context: &mut StepContext<'_>) {
        let in_flight = self.posts.exchanges().iter().map(|exchange| exchange.id.clone());
        for id in in_flight.collect::<Vec<_>>() {
            self.link.cancel_request(context, &mut self.ended, &id, "the client was revoked");
        }
        self.end_session(context, Cause::Revoked);
    }

    /// Ends the session: open requests get an error, streams are closed (SES-08).
    pub(crate) fn end_session(&mut self, context: &mut StepContext<'_>, cause: Cause) {
        let aborts =
            cause == Cause::Stopping && self.handshake.revision().reopens_only_after_abort();
        let ending = if aborts { Ending::Abort } else { Ending::Proper };
        let text = match cause {
            Cause::Stopping => "the node is stopping; try again",
            Cause::Revoked => "the client was revoked",
            Cause::StateLost => {
                "the server has lost the state of the session; initialize a new one"
            }
            _ => "the session has ended",
        };
        let error = |id| Response::error(Some(id), crate::REFUSED, text, None);
        self.barrier.refuse_all_answers(context, text);
        self.streams.write_all_unlogged(context, &self.barrier);
        self.mirroring.fail_parked(context, &error);
        for exchange in self.posts.take_all_exchanges() {
            let error = error(exchange.id);
            self.answering().final_error_at_the_end(context, exchange.post, &error);
        }
        self.streams.finish_all_sinks(context, ending);
        if let Some(sink) = context.setup.duplex.filter(|_| cause != Cause::Disconnected) {
            context.finish_sink(sink, Ending::Proper);
        }
        self.link.end_link(context);
        self.handshake.note_over();
        self.lifecycle.end_for_good();
        context.effects.push(Effect::Over { cause });
    }

    /// Answers an event after the end.
    pub(crate) fn answer_after_the_end(&mut self, context: &mut StepContext<'_>, event: &Event) {
        self.lifecycle.answer_after_the_end(context, event);
    }

    /// The node is to release the session. A duplex session ends with its connection, so it never
    /// moves: it ends here, after its requests in flight.
    pub(crate) fn on_hand_over(&mut self, context: &mut StepContext<'_>, at_once: bool) {
        let handshake = &self.handshake;
        let may_wait = !at_once && (handshake.is_initialized() || handshake.is_initializing());
        let can_move = handshake.is_initialized() && !context.is_duplex();
        if !may_wait && !can_move {
            self.end_session(context, Cause::Stopping);
        } else {
            self.lifecycle.begin_hand_over(at_once);
        }
    }

    /// Why the session leaves its owner; `None` while it stays, or cannot leave yet.
    fn leaving(&self) -> Option<Leaving> {
        self.lifecycle.leaving().filter(|_| self.handshake.is_initialized())
    }

    /// Ends everything that keeps the session here.
    fn prepare_to_leave(&mut self, context: &mut StepContext<'_>) {
        let Some(leaving) = self.leaving() else { return };
        if leaving == Leaving::AtOnce {
            // Before the final responses to the requests that they were sent for.
            self.delivery().withdraw_all_requests(context, "the node stopped");
            let text =
                "the node stopped before the server answered; whether it was done is not known";
            let error = |id| Response::error(Some(id), crate::REFUSED, text, None);
            self.mirroring.fail_parked(context, &error);
            self.delivery().settle_all_with_error(context, &error);
            // The responses of the server could not be forwarded any more.
            self.link.leave_link(context);
        }
        if self.has_no_work() {
            self.delivery().withdraw_all_requests(context, "the node stopped");
        }
    }

    /// Leaves if nothing keeps the session here any more.
    fn leave_owner(&mut self, context: &mut StepContext<'_>) {
        let Some(leaving) = self.leaving() else { return };
        let has_no_work = self.has_no_work() || mutant!("leave_with_work_in_hand");
        if !has_no_work || !self.is_stored(context.setup) {
            return;
        }
        if context.is_duplex() {
            return self.end_session(context, Cause::Stopping);
        }
        self.streams.finish_all_sinks(context, Ending::Moved);
        self.link.leave_link(context);
        self.handshake.note_over();
        context.effects.push(Effect::Over { cause: leaving.cause() });
    }
}

//! The machine's side towards other nodes: what it saves for the session's next owner, and how it goes on
//! where a former owner's was.
//!
//! A server whose link has saved nothing begins anew at each owner.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{ErrorCode, Request, RequestId, Response};

use super::{Effect, Initialize, Machine, Report, Setup};
use super::{answer, error};
use crate::failure::Failure;
use crate::pins::Pinned;
use crate::saved::{Saved, ServerState};
use crate::waiting::{Until, Waiting};

/// What a former owner's machine has left.
pub(crate) struct Carried {
    /// What it saved.
    pub(crate) saved: Saved,
    /// The requests in flight whose responses the links of these servers wait for.
    pub(crate) calls: Vec<(Option<usize>, RequestId)>,
}

impl Machine {
    /// A machine that goes on where that of a former owner was.
    pub(crate) fn carry_on(
        setup: Arc<Setup>,
        pins: Arc<[Pinned]>,
        Carried { saved, calls }: Carried,
        now: u64,
        effects: &mut Vec<Effect>,
    ) -> Self {
        let mut machine = Self::unopened(setup, pins, now);
        machine.promised = Some(saved.result);
        for (child, uri) in saved.links.into_iter().rev() {
            machine.links.add(uri, child);
        }
        for (child, state) in machine.children.iter_mut().zip(saved.servers) {
            child.is_carried = matches!(state, ServerState::Saved(_));
            child.saved = state;
        }
        for (at, child) in machine.children.iter_mut().enumerate().filter(|(_, c)| c.is_lost()) {
            child.note_down(now, &Failure::new(""), false);
            let (child, failure, was_ready) = (at, child.failure.clone(), false);
            effects.push(Effect::Report(Report::Down { child, failure, was_ready }));
        }
        for (child, id) in calls {
            match child.filter(|at| machine.children.get(*at).is_some_and(|c| c.is_carried)) {
                Some(child) => machine.in_flight.add_resumed(child, id),
                None => machine.orphans.push(id),
            }
        }
        machine.open_due(now, effects);
        machine
    }

    /// Answers `initialize` as a former owner did, and does not wait for the servers: the calls of those that
    /// are carried on go on, and other requests wait for the starts of their servers.
    pub(super) fn initialize_again(&mut self, effects: &mut Vec<Effect>) {
        let Initialize::Pending { id, .. } = &self.initialize else { return };
        let (id, result) = (id.clone(), self.promised.clone().unwrap_or_default());
        self.initialize = Initialize::Answered;
        answer(effects, id.clone(), Response::result(id, &result).into());
        for id in std::mem::take(&mut self.orphans) {
            let text = "the session with the server of this request cannot be carried on";
            answer(effects, id.clone(), error(id, ErrorCode::InternalError, text));
        }
    }

    /// The link to a server has saved this for the next owner.
    pub(super) fn on_saved(&mut self, child: usize, state: Bytes) {
        let child = &mut self.children[child];
        if !child.is_lost() {
            child.saved = match state.is_empty() {
                true => ServerState::Anew,
                false => ServerState::Saved(state),
            };
            self.is_unsaved = true;
        }
    }

    /// What the next owner needs, if that has changed and the session's `initialize` is answered. Empty if
    /// there is nothing.
    pub(crate) fn take_unsaved(&mut self, effects: &mut Vec<Effect>) -> Option<Bytes> {
        let promised = self.promised.as_ref().filter(|_| self.is_unsaved)?;
        let servers: Vec<_> = self.children.iter().map(|child| &child.saved).collect();
        let (state, left_out) =
            Saved::encode(&self.setup.members, promised, &servers, self.links.newest());
        let report = |child| Effect::Report(Report::NotKept { child });
        effects.extend(left_out.into_iter().map(report));
        self.is_unsaved = false;
        Some(state)
    }

    /// A server has not run this request, and has lost its session. The request is sent once more when the
    /// server is ready again, but not a second time.
    pub(super) fn on_returned(&mut self, child: usize, request: Request) {
        if self.in_flight.take_returned(child, &request.id).is_some() {
            // It was in flight, so the number of these bounds it.
            let until = Until::Started(child);
            self.waiting.add_in_flight(Waiting { request, until, was_returned: true });
        }
    }

    /// Whether a request that this server has returned waits for it.
    pub(super) fn is_awaited(&self, child: usize) -> bool {
        let is_it = |waiting: &Waiting| waiting.until == Until::Started(child);
        self.waiting.any(|waiting| waiting.was_returned && is_it(waiting))
    }

    /// Whether a server may tell the client of changes of this resource: the session is subscribed there to it,
    /// or to a resource that it is part of. Of a server that is carried on the former owner knew that: it may,
    /// unless another server has the subscription. The session knows all subscriptions.
    pub(super) fn is_subscribed(&self, child: usize, uri: &str) -> bool {
        let is_at = |child: usize| {
            let subscriptions = &self.children[child].subscriptions;
            subscriptions.iter().any(|subscribed| uri.starts_with(&**subscribed))
        };
        let is_elsewhere = || (0..self.children.len()).any(is_at);
        is_at(child) || (self.children[child].is_carried && !is_elsewhere())
    }

    /// Whether the client is to be told of a change of this server's lists later.
    pub(crate) fn holds_change(&self, child: usize) -> bool {
        self.children[child].holds_change()
    }

    /// Whether a request of the session is at this server.
    pub(crate) fn has_call(&self, child: usize, id: &RequestId) -> bool {
        self.in_flight.is_at(child, id)
    }
}

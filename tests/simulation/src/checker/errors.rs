//! Which errors are allowed as the final response of a call.

use conversation::Limits;
use ownership::Incarnation;
use protocol::SessionId;

use super::super::client::{Call, Client};
use super::super::plan::Plan;
use super::Checker;

/// The errors of a call whose node was lost.
const LOST: [&str; 2] = [
    "the node that worked on this was lost; whether it was done is not known",
    "messages of this request were lost with the node that sent them",
];
/// The error of a call whose node drained.
const STOPPED: &str =
    "the node stopped before the server answered; whether it was done is not known";
/// The start of the error of a request whose session was not found within the hold time.
const HELD: &str = "the session could not be reached for";
/// The start of the error of a client that resumes at an event that the log does not keep.
const TRIMMED: &str = "messages of this request were dropped before the client came back for them";
/// The error of a call whose session was deleted by its client.
const ENDED: &str = "the session has ended";

/// How long, in milliseconds, a result is kept that was sent and may not have arrived: 5 s by a
/// clock that may run 1 % fast.
const RESULT_KEPT: u64 = 4_950;

impl Checker {
    /// Checks whether the call may have ended with its error. Otherwise returns the reason.
    pub(super) fn may_fail(
        &self,
        client: &Client,
        session: &SessionId,
        call: &Call,
        plan: &Plan,
    ) -> Result<(), String> {
        let text = call.error.as_deref().unwrap_or_default();
        let took = call.until.saturating_sub(call.since);
        let may_run_again = call.job.idempotent && !call.asked;
        let bounded = plan.log_events < Limits::default().log_events_max;
        if bounded && (text.starts_with(TRIMMED) || LOST.contains(&text)) {
            // The client resumed at an event that the bounds of the log do not keep.
            return Ok(());
        }
        if LOST.contains(&text) && client.asked_to_end.is_some_and(|at| at <= call.until) {
            // The next node that received the request found that the session had ended.
            return Ok(());
        }
        if LOST.contains(&text) && self.was_found_evicted(session, call) {
            return Ok(());
        }
        if LOST.contains(&text) {
            // An owner that has begun the call keeps its result for a short time.
            let began = self.began.get(&call.job.call);
            let kept = began.is_some_and(|at| call.until <= at + call.job.work() + RESULT_KEPT);
            let keeps = kept && !self.was_left(session, call);
            let cut_off = !keeps && self.was_cut_off(session, call);
            let struck = self.was_struck(session, call) || cut_off || self.lost_its_node(call);
            return match (may_run_again, struck) {
                (true, _) => Err("it may be run again".to_owned()),
                (_, false) => Err("its session kept its owner".to_owned()),
                (false, true) => Ok(()),
            };
        }
        if text == STOPPED {
            let owners = self.owned_by.get(session).into_iter().flatten();
            let drained = owners.into_iter().filter_map(|owner| self.drained.get(owner));
            let mut due = drained.map(|at| at + plan.drain);
            // `node.drain_secs` also bounds calls that may be run again.
            return if due.any(|due| due <= call.until) {
                Ok(())
            } else {
                Err("no owner of its session drained".to_owned())
            };
        }
        if text.starts_with(HELD) {
            let mut nodes = call.nodes.iter();
            let left = nodes.any(|node| self.is_leaving(call.until, *node, plan));
            // By a clock that may run 1 % fast.
            let held = left || took >= plan.hold * 99 / 100;
            return if held { Ok(()) } else { Err(format!("after {took} ms")) };
        }
        if text == ENDED {
            let asked = client.asked_to_end.is_some_and(|at| at <= call.until);
            return if asked { Ok(()) } else { Err("its client did not delete it".to_owned()) };
        }
        Err("nothing promised allows this error".to_owned())
    }

    /// Whether the link broke between an owner of the session and a node that had sent it the call.
    /// A node that drains sends a call to any other node, which is to claim the session.
    fn was_cut_off(&self, session: &SessionId, call: &Call) -> bool {
        let owners = self.owned_by.get(session);
        let owns = |node: &Incarnation| owners.is_some_and(|owners| owners.contains(node));
        let mut meanwhile =
            self.broken_links.iter().filter(|(at, ..)| (call.since..=call.until).contains(at));
        meanwhile.any(|(_, one, other)| {
            let sent = |from: &Incarnation, to: &Incarnation| {
                call.nodes.contains(from) && (owns(to) || self.drained.contains_key(from))
            };
            sent(one, other) || sent(other, one)
        })
    }

    /// Whether a node died that ran the call. In a partition of Redis that may be another node than
    /// the one that claimed the session last.
    fn lost_its_node(&self, call: &Call) -> bool {
        let nodes = self.ran_at.get(&call.job.call).into_iter().flatten();
        let mut died = nodes.filter_map(|node| self.died.get(node));
        died.any(|at| (call.since..=call.until).contains(at))
    }

    /// Whether an owner of the session released it while the call ran.
    fn was_left(&self, session: &SessionId, call: &Call) -> bool {
        let left = self.left.get(session).into_iter().flatten();
        left.into_iter().any(|at| (call.since..=call.until).contains(at))
    }

    /// Whether the session lost its owner while the call ran.
    fn was_struck(&self, session: &SessionId, call: &Call) -> bool {
        let strikes = self.strikes.get(session).into_iter().flatten();
        strikes.into_iter().any(|strike| call.since <= strike.began_by && strike.at <= call.until)
    }

    /// Whether a node read, while the call ran, that the session does not exist: its record was
    /// evicted, and its owner had not noticed.
    fn was_found_evicted(&self, session: &SessionId, call: &Call) -> bool {
        let found = self.found_evicted.get(session).into_iter().flatten();
        found.into_iter().any(|at| (call.since..=call.until).contains(at))
    }
}

//! Checks at the end of a run what each client has received.

use super::super::client::{CallState, Client, Phase};
use super::super::plan::Plan;
use super::{Checker, OVERHEAD};

impl Checker {
    /// Checks at the end of a run, without faults, that this client received what was promised.
    pub(crate) fn check_client(&mut self, client: &Client, plan: &Plan) {
        let session = client.session.clone();
        if client.phase == Phase::New {
            self.breaks(format!("client {} never got a session", client.number));
        }
        if let Some(what) = client.unanswered().next() {
            self.breaks(format!("client {} never got an answer to {what}", client.number));
        }
        let Some(session) = session else { return };
        if plan.keeps_owners && self.strikes.contains_key(&session) {
            self.breaks(format!("{} has lost its owner, which runs", session.as_str()));
        }
        let mut wrong = Vec::new();
        for (number, call) in &client.calls {
            self.tally.calls += 1;
            match call.state {
                CallState::Result => self.tally.results += 1,
                CallState::Error => self.tally.errors += 1,
                CallState::Lost => self.tally.lost += 1,
                CallState::Open | CallState::Cancelled | CallState::Gone => {}
            }
            // No excuse covers a call without a final response, even if its session was lost.
            let live = client.phase == Phase::Live;
            if call.state == CallState::Open && (live || call.is_connected()) {
                self.breaks(format!("call {number} of {session:?} never got its final response"));
            }
            if matches!(call.state, CallState::Result | CallState::Error) && call.is_connected() {
                self.breaks(format!("the stream of call {number} of {session:?} did not end"));
            }
            if live && call.since >= plan.probe_at && call.state != CallState::Result {
                let state = call.state;
                self.breaks(format!(
                    "{session:?} is not usable after all faults: call {number} ended {state:?}"
                ));
            }
            if call.state == CallState::Error
                && let Err(why) = self.may_fail(client, &session, call, plan)
            {
                let text = call.error.as_deref().unwrap_or_default();
                wrong.push((call.since, format!("call {number} failed ({text}): {why}")));
            }
            if !live {
                continue;
            }
            if let (CallState::Result | CallState::Error, Some(last)) = (call.state, call.last)
                && let Some(missed) = self.missed(client, &session, last)
            {
                wrong.push((call.since, format!("call {number} never got event {missed}")));
            }
            let took = call.until.saturating_sub(call.since);
            let bound = plan.hold + 2 * call.job.work() + call.waited + OVERHEAD;
            let bound = bound + self.leases_stood_longer(call) + self.without_claimant(call);
            let bound = plan.answers_within.min(bound);
            if matches!(call.state, CallState::Result | CallState::Error) && took > bound {
                let text = format!("the final response to call {number} took {took} of {bound} ms");
                wrong.push((call.since, text));
            }
        }
        if self.ended.contains_key(&session) && client.is_listening() {
            let text = "the end of the session did not end its GET stream".to_owned();
            wrong.push((client.asked_to_end.unwrap_or(0), text));
        }
        for (since, text) in wrong {
            if self.is_excused(&session, since) {
                self.forgiven.insert(session.clone());
            } else {
                let older = self.older_excuse(&session);
                self.breaks(format!("{text} ({}{older})", session.as_str()));
            }
        }
        self.tally.excused += u64::from(self.forgiven.contains(&session));
    }
}

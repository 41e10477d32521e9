//! Time: when the session wants to be asked again, and what it does then.

use protocol::Response;

use crate::exchange::{Exchange, Form};
use crate::leaving::Leaving;
use crate::session::{Phase, Session, StepContext};
use crate::stream::Route;
use crate::{Cause, Effect, Ending, Frame, Millis};

impl Session {
    /// When to step with [`crate::Event::DeadlinePassed`]. Asking early, late or twice does no
    /// harm.
    pub fn deadline(&self) -> Option<Millis> {
        if self.is_over() {
            return None;
        }
        // After every step, and so in plain loops: one chain of all costs more than twice that.
        let mut first = Millis(u64::MAX);
        let mut at = |time: Option<Millis>| first = time.map_or(first, |time| first.min(time));
        for call in self.calls.iter().filter(|call| call.sink.is_some()) {
            if let Form::Held { upgrade_at, .. } = call.form {
                at(Some(upgrade_at));
            }
        }
        for exchange in &self.exchanges {
            at(Some(exchange.deadline()));
            at(exchange.progress.as_ref().and_then(|pace| pace.deadline(&self.limits)));
        }
        for attachment in &self.attachments {
            at(attachment.ping_at);
            at(attachment.poll_at);
        }
        for server_request in &self.server_requests {
            at(Some(server_request.deadline));
        }
        if !self.attachments.is_empty() || !self.gated.is_empty() {
            at(self.withheld_until());
        }
        if !self.kept.is_empty() {
            at(self.kept_until());
        }
        at(self.link.deadline());
        at(self.trims_at());
        at(self.idle_at());
        at(self.sleeps_at());
        at(self.link_idles_at());
        (first.0 < u64::MAX).then_some(first)
    }

    /// When the session is over if nothing happens in it.
    fn idle_at(&self) -> Option<Millis> {
        let quiet = self.exchanges.is_empty() && self.attachments.is_empty();
        let secs = match self.phase {
            Phase::Answered => self.limits.handshake_secs.min(self.limits.idle_secs),
            _ => self.limits.idle_secs,
        };
        (quiet && self.duplex.is_none()).then(|| self.touched.plus(secs * 1_000))
    }

    /// When the session leaves memory if nothing happens in it.
    fn sleeps_at(&self) -> Option<Millis> {
        let secs = Some(self.limits.sleep_after_secs).filter(|secs| *secs > 0)?;
        let quiet = self.exchanges.is_empty() && self.attachments.is_empty();
        let sleeps = quiet && self.link.is_down() && self.is_live();
        (sleeps && self.leaving.is_none() && self.duplex.is_none())
            .then(|| self.touched.plus(secs.saturating_mul(1_000)))
    }

    /// When the link has been idle for so long that it is closed. It is not idle while the client
    /// has subscriptions and listens to a stream.
    fn link_idles_at(&self) -> Option<Millis> {
        let secs = self.idle_stop_secs?;
        let listens = !self.subscriptions().is_empty() && !self.attachments.is_empty();
        let quiet = self.exchanges.is_empty() && !self.has_asks() && !self.mirroring.is_busy();
        let idles = quiet && !listens && self.is_live() && self.duplex.is_none();
        let since = self.link.idle_since().filter(|_| idles)?;
        Some(since.plus(secs.saturating_mul(1_000)))
    }

    pub(crate) fn deadline_passed(&mut self, context: &mut StepContext<'_>) {
        if self.idle_at().is_some_and(|at| at <= context.now) {
            self.end(context, Cause::Idle);
            return;
        }
        if self.sleeps_at().is_some_and(|at| at <= context.now) {
            self.leaving = Some(Leaving::FallingAsleep);
        }
        if self.link_idles_at().is_some_and(|at| at <= context.now) {
            self.link.close(context);
        }
        self.link_deadline(context);
        self.server_request_deadlines(context);
        self.exchange_deadlines(context);
        self.pace_deadlines(context);
        self.call_deadlines(context);
        self.withheld_deadlines(context);
        self.kept_deadlines(context);
        self.attachment_deadlines(context);
    }

    /// A request was silent for too long, or takes too long altogether (RPC-22).
    fn exchange_deadlines(&mut self, context: &mut StepContext<'_>) {
        let now = context.now;
        let was_undecided = !self.link.undecided.is_empty();
        let due = |exchange: &Exchange| exchange.deadline() <= now;
        while let Some(index) = self.exchanges.iter().position(due) {
            let exchange = self.exchanges.swap_remove(index);
            let message = if exchange.ends_at <= context.now {
                format!(
                    "the server took longer than {} s; the request was cancelled",
                    self.limits.request_max_secs
                )
            } else {
                format!(
                    "the server was silent for {} s; the request was cancelled",
                    self.limits.request_secs
                )
            };
            self.cancel_at_server(context, &exchange.id, "it took too long");
            let error = Response::error(Some(exchange.id.clone()), crate::REFUSED, &message, None);
            self.settle_taken(context, exchange, error.raw().clone(), false);
        }
        if was_undecided && self.link.undecided.is_empty() {
            // The list that they waited for does not come; the next one asks again.
            self.mirroring.give_up_unless_parked();
        }
    }

    /// Progress that had to wait may pass.
    fn pace_deadlines(&mut self, context: &mut StepContext<'_>) {
        let mut passing = Vec::new();
        for exchange in &mut self.exchanges {
            let held =
                exchange.progress.as_mut().and_then(|pace| pace.due(&self.limits, context.now));
            passing.extend(held.map(|data| (exchange.call, data)));
        }
        for (call, data) in passing {
            self.deliver(context, Route::Call(call), data, false);
        }
    }

    /// A POST was silent for long.
    fn call_deadlines(&mut self, context: &mut StepContext<'_>) {
        let silent = |call: &&crate::exchange::Call| match call.form {
            Form::Held { upgrade_at, .. } => call.sink.is_some() && upgrade_at <= context.now,
            _ => false,
        };
        let due: Vec<_> = self.calls.iter().filter(silent).map(|call| call.id).collect();
        due.into_iter().for_each(|call| self.upgrade_silent(context, call));
    }

    /// A client is due for a ping, or a connection is old.
    fn attachment_deadlines(&mut self, context: &mut StepContext<'_>) {
        let (now, limits) = (context.now, self.limits.clone());
        let (mut pings, mut polls) = (Vec::new(), Vec::new());
        for attachment in &mut self.attachments {
            if attachment.poll_at.is_some_and(|at| at <= now) {
                attachment.poll_at = None;
                if attachment.resumable {
                    polls.push(attachment.sink);
                    continue;
                }
            }
            if attachment.ping_at.is_some_and(|at| at <= now) {
                attachment.ping_at = Some(now.plus(limits.ping_secs * 1_000));
                pings.push(attachment.stream);
            }
        }
        for sink in polls {
            // The client comes back with the last id it saw (SSE-05).
            let retry = self.retry();
            context.effects.push(Effect::Write { sink, frame: Frame::Retry(retry) });
            self.finish(context, sink, Ending::Proper);
        }
        pings.into_iter().for_each(|stream| self.ping_client(context, stream));
    }
}

//! Results whose way to their client may be lost: kept for a while, and given to the post
//! of the same request that comes again.
//!
//! Only single JSON answers are kept here: what a stream carries is in the log.

use bytes::Bytes;
use protocol::RequestId;

use crate::session::{Session, StepContext};
use crate::{Answer, Millis, SinkId};

/// How long a result is kept that was sent to another node, in milliseconds. A node
/// whose link broke just then sends the request again well before.
const ANSWERED_KEPT_MS: u64 = 5_000;

/// A final response that is kept.
pub(crate) struct Kept {
    request: RequestId,
    data: Bytes,
    /// Does it acknowledge a change that must be held before it is given?
    gated: bool,
    until: Millis,
}

impl Session {
    /// Keeps a final response whose connection may be lost, or is. At a bound the oldest goes.
    pub(crate) fn keep_result(
        &mut self,
        context: &StepContext<'_>,
        request: &RequestId,
        data: &Bytes,
        (is_awaited, gated): (bool, bool),
    ) {
        if mutant!("keep_no_result") {
            return;
        }
        let (most, bytes_max) = (self.limits.kept_results_max, self.limits.kept_results_bytes_max);
        self.forget_result(request);
        let mut bytes = data.len() + self.kept.iter().map(|kept| kept.data.len()).sum::<usize>();
        while !self.kept.is_empty() && (self.kept.len() >= most || bytes > bytes_max) {
            bytes -= self.kept.remove(0).data.len();
        }
        if most == 0 || bytes > bytes_max {
            return;
        }
        // One that waits for the record may lose its connection meanwhile.
        let answered = is_awaited && !gated;
        let millis = if answered { ANSWERED_KEPT_MS } else { self.limits.hold_ms };
        let (request, data, until) = (request.clone(), data.clone(), context.now.plus(millis));
        self.kept.push(Kept { request, data, gated, until });
    }

    /// Answers a post that came again with the result that was kept. False where none is.
    pub(crate) fn give_result(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        id: &RequestId,
    ) -> bool {
        let Some(kept) = self.kept.iter().find(|kept| kept.request == *id) else { return false };
        let (answer, gated) = (Answer::Json(kept.data.clone()), kept.gated);
        // It stays, since this answer may be lost, too.
        self.answer(context, Some(sink), answer, gated);
        true
    }

    /// Drops the result that is kept of a request: its client does not want it.
    pub(crate) fn forget_result(&mut self, id: &RequestId) {
        self.kept.retain(|kept| kept.request != *id);
    }

    /// When a result has been kept for long enough.
    pub(crate) fn kept_until(&self) -> Option<Millis> {
        self.kept.iter().map(|kept| kept.until).min()
    }

    /// Drops what was kept for long enough.
    pub(crate) fn kept_deadlines(&mut self, context: &StepContext<'_>) {
        self.kept.retain(|kept| kept.until > context.now);
    }
}

//! Results that may be lost on their way to the client: kept for a while, and sent to the client
//! if it posts the same request again.
//!
//! Only single JSON answers are kept here: the messages of a stream are in the log.

use bytes::Bytes;
use protocol::RequestId;
use thin_vec::ThinVec;

use crate::earliest::Earliest;
use crate::step_context::StepContext;
use crate::{Answer, Millis};

/// How long a result is kept that was sent to another node, in milliseconds. A node whose link
/// just broke posts the request again well before that.
const ANSWERED_KEPT_MS: u64 = 5_000;

/// Kept results, oldest first; bounded by `kept_results_max` and `kept_results_bytes_max`.
#[derive(Default)]
pub(crate) struct KeptResults(ThinVec<KeptResult>);

/// One kept final response.
struct KeptResult {
    request: RequestId,
    data: Bytes,
    /// Does it acknowledge a change that the store must hold first?
    changes_state: bool,
    until: Millis,
}

impl KeptResults {
    /// Keeps a final response whose connection is, or may be, lost. At a limit the oldest is
    /// dropped.
    pub(crate) fn keep_result(
        &mut self,
        context: &StepContext<'_>,
        request: &RequestId,
        data: &Bytes,
        (is_awaited, changes_state): (bool, bool),
    ) {
        if mutant!("keep_no_result") {
            return;
        }
        let limits = context.limits();
        let (most, bytes_max) = (limits.kept_results_max, limits.kept_results_bytes_max);
        self.forget_result(request);
        if most == 0 || data.len() > bytes_max {
            return;
        }
        let mut bytes = data.len() + self.bytes();
        while !self.0.is_empty() && (self.0.len() >= most || bytes > bytes_max) {
            bytes -= self.0.remove(0).data.len();
        }
        // An answer that waits for the record may lose its connection meanwhile.
        let is_answered = is_awaited && !changes_state;
        let millis = if is_answered { ANSWERED_KEPT_MS } else { limits.hold_ms };
        let (request, data, until) = (request.clone(), data.clone(), context.now.plus(millis));
        self.0.push(KeptResult { request, data, changes_state, until });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes of the kept results.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|kept| kept.data.len()).sum()
    }

    /// The result of a request, and whether it acknowledges a change. The result is kept, since
    /// this answer may be lost too.
    pub(crate) fn result_of(&self, id: &RequestId) -> Option<(Answer, bool)> {
        let kept = self.0.iter().find(|kept| kept.request == *id)?;
        Some((Answer::Json(kept.data.clone()), kept.changes_state))
    }

    /// Drops the result of a request: its client cancelled it.
    pub(crate) fn forget_result(&mut self, id: &RequestId) {
        self.0.retain(|kept| kept.request != *id);
    }

    pub(crate) fn note_deadlines(&self, earliest: &mut Earliest) {
        for kept in &self.0 {
            earliest.add_deadline(kept.until);
        }
    }

    /// Drops the expired results.
    pub(crate) fn drop_old(&mut self, now: Millis) {
        self.0.retain(|kept| kept.until > now);
    }

    /// Frees memory that is not in use.
    pub(crate) fn shrink(&mut self) {
        if self.0.is_empty() && self.0.capacity() > 0 {
            self.0 = ThinVec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;
    use crate::step_context::step_of_part;

    #[test]
    fn at_a_limit_the_oldest_result_is_dropped() {
        let limits =
            Limits { kept_results_max: 2, kept_results_bytes_max: 10, ..Limits::default() };
        let mut kept = KeptResults::default();
        let mut kept_after = |id: i64, data: &'static str| {
            step_of_part(limits.clone(), Millis(0), |context| {
                let data = Bytes::from_static(data.as_bytes());
                kept.keep_result(context, &id.into(), &data, (false, false));
            });
            [1_i64, 2, 3, 4].map(|id| kept.result_of(&id.into()).is_some())
        };
        assert_eq!(kept_after(1, "1234"), [true, false, false, false]);
        assert_eq!(kept_after(2, "1234"), [true, true, false, false]);
        assert_eq!(kept_after(3, "1234"), [false, true, true, false], "two are the most");
        assert_eq!(kept_after(4, "1234567"), [false, false, false, true], "ten bytes are the most");
    }

    #[test]
    fn a_result_that_was_sent_is_kept_for_a_shorter_time() {
        let mut kept = KeptResults::default();
        step_of_part(Limits::default(), Millis(0), |context| {
            kept.keep_result(context, &1.into(), &Bytes::new(), (true, false));
            kept.keep_result(context, &2.into(), &Bytes::new(), (false, false));
        });
        kept.drop_old(Millis(ANSWERED_KEPT_MS));
        assert!(kept.result_of(&1.into()).is_none());
        assert!(kept.result_of(&2.into()).is_some());
    }
}

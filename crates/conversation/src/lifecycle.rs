//! How a session ends at its owner: idle, asleep, handed over, or deleted.
//!
//! A session that is put to sleep or handed over does not end for good. It finishes the requests
//! in flight, waits until the store holds everything, and only then leaves, so that the next
//! owner can read all of it.
//!
//! A DELETE is answered once the store has acknowledged the end. If it were answered earlier, the
//! end could be lost with its owner, and the session, which may have been stolen, could be used
//! again.

use std::num::NonZeroU32;

use thin_vec::ThinVec;

use crate::step_context::StepContext;
use crate::{Answer, Cause, Event, Millis, Refusal, SinkId};

/// Most DELETEs that wait for one end; a further one is refused as [`Refusal::Busy`].
const DELETES_MAX: usize = 64;

/// When the session was last used, whether it leaves its owner, and its end.
pub(crate) struct Lifecycle {
    /// When the client was last active.
    touched: Millis,
    /// Has the client closed its last standalone stream, and done nothing since?
    has_left_stream: bool,
    /// Why the session leaves, or has left, its owner.
    leaving: Option<Leaving>,
    /// Does the session's tenant keep as many bytes as it may?
    is_budget_exhausted: bool,
    /// The session's tenant keeps as many bytes in the store as it may, and no event may be dropped
    /// before this time.
    store_exhausted: Option<StoreExhausted>,
    end: EndState,
}

/// Why a session leaves its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It is handed over, once nothing is in flight.
    Moving,
    /// It is handed over at once.
    AtOnce,
    /// It is idle. Any event cancels this.
    FallingAsleep,
}

/// A time in seconds, rounded up, plus one: four bytes, which a session has room for.
#[derive(Clone, Copy)]
struct StoreExhausted(NonZeroU32);

impl StoreExhausted {
    fn until(time: Millis) -> Self {
        let secs = u32::try_from(time.0.div_ceil(1_000)).unwrap_or(u32::MAX);
        Self(NonZeroU32::MIN.saturating_add(secs))
    }

    fn time(self) -> Millis {
        Millis(u64::from(self.0.get() - 1) * 1_000)
    }
}

impl Leaving {
    pub(crate) fn cause(self) -> Cause {
        match self {
            Self::Moving | Self::AtOnce => Cause::Moved,
            Self::FallingAsleep => Cause::Asleep,
        }
    }
}

/// Does the store hold the end of a session?
enum EndState {
    /// Not written yet, or not begun. DELETEs wait here.
    Pending(ThinVec<SinkId>),
    /// The store holds it.
    Durable,
    /// The store did not acknowledge it in time. The caller keeps retrying.
    Unknown,
}

impl Lifecycle {
    pub(crate) fn new(now: Millis) -> Self {
        Self {
            touched: now,
            has_left_stream: false,
            leaving: None,
            is_budget_exhausted: false,
            store_exhausted: None,
            end: EndState::Pending(ThinVec::new()),
        }
    }

    /// The client was active.
    pub(crate) fn note_activity(&mut self, now: Millis) {
        self.touched = now;
        self.has_left_stream = false;
    }

    /// The connection of the client's last standalone stream is closed.
    pub(crate) fn note_stream_left(&mut self) {
        self.has_left_stream = true;
    }

    /// Has the client closed its last standalone stream, and done nothing since?
    pub(crate) fn has_left_stream(&self) -> bool {
        self.has_left_stream
    }

    /// When the client was last active.
    pub(crate) fn touched(&self) -> Millis {
        self.touched
    }

    pub(crate) fn leaving(&self) -> Option<Leaving> {
        self.leaving
    }

    /// The session is to be handed over.
    pub(crate) fn begin_hand_over(&mut self, at_once: bool) {
        let at_once = at_once || self.leaving == Some(Leaving::AtOnce);
        self.leaving = Some(if at_once { Leaving::AtOnce } else { Leaving::Moving });
    }

    /// The tenant's budget was used up, or is not any more.
    pub(crate) fn note_budget(&mut self, is_exhausted: bool) {
        self.is_budget_exhausted = is_exhausted;
    }

    /// Does the session's tenant keep as many bytes as it may? Then a new request gets an error.
    pub(crate) fn is_budget_exhausted(&self) -> bool {
        self.is_budget_exhausted
    }

    /// The tenant keeps as many bytes in the store as it may, or less again.
    pub(crate) fn note_store(&mut self, exhausted: Option<Millis>) {
        self.store_exhausted = exhausted.map(StoreExhausted::until);
    }

    /// If the tenant keeps as many bytes in the store as it may: the time before which no event may be
    /// dropped.
    pub(crate) fn store_exhausted(&self) -> Option<Millis> {
        self.store_exhausted.map(StoreExhausted::time)
    }

    /// The session is not to be handed over after all. One that is handed over at once has given
    /// its requests up already.
    pub(crate) fn cancel_hand_over(&mut self) {
        if self.leaving == Some(Leaving::Moving) {
            self.leaving = None;
        }
    }

    /// The session is idle.
    pub(crate) fn fall_asleep(&mut self) {
        self.leaving = Some(Leaving::FallingAsleep);
    }

    /// The session is not idle any more: it does not fall asleep.
    pub(crate) fn stay_awake(&mut self) {
        if self.leaving == Some(Leaving::FallingAsleep) {
            self.leaving = None;
        }
    }

    /// Does the session refuse new work here?
    pub(crate) fn takes_nothing(&self) -> bool {
        self.leaving == Some(Leaving::AtOnce)
    }

    /// The session ends here, and is no longer handed over.
    pub(crate) fn end_for_good(&mut self) {
        self.leaving = None;
    }

    /// Answers a DELETE, now or as soon as the store has acknowledged the end.
    pub(crate) fn answer_when_ended(&mut self, context: &mut StepContext<'_>, sink: SinkId) {
        if mutant!("answer_a_delete_at_once") {
            return context.answer_sink(sink, Answer::Ended);
        }
        let refusal = match &mut self.end {
            EndState::Pending(deletes) if deletes.len() < DELETES_MAX => {
                deletes.push(sink);
                return;
            }
            EndState::Pending(_) => Refusal::Busy,
            EndState::Durable => Refusal::UnknownSession,
            EndState::Unknown => Refusal::Unavailable,
        };
        context.refuse_sink(sink, refusal);
    }

    /// The store holds the end of the session (`durable`), or has not acknowledged it in time:
    /// answers all waiting DELETEs.
    fn end_acknowledged(&mut self, context: &mut StepContext<'_>, durable: bool) {
        let (state, answer) = if durable || mutant!("an_unknown_end_is_an_end") {
            (EndState::Durable, Answer::Ended)
        } else {
            (EndState::Unknown, Answer::Refused(Refusal::Unavailable))
        };
        let EndState::Pending(deletes) = std::mem::replace(&mut self.end, state) else {
            return;
        };
        for sink in deletes {
            context.answer_sink(sink, answer.clone());
        }
    }

    /// Does this connection wait for the end of the session to be stored?
    pub(crate) fn awaits_end(&self, sink: SinkId) -> bool {
        matches!(&self.end, EndState::Pending(deletes) if deletes.contains(&sink))
    }

    /// Answers a request after the end. A DELETE waits until the store has answered; every other
    /// event is ignored.
    pub(crate) fn answer_after_the_end(&mut self, context: &mut StepContext<'_>, event: &Event) {
        let lives_on = self.leaving.is_some();
        match event {
            Event::Ended { durable } => self.end_acknowledged(context, *durable),
            Event::Deleted { sink } if !lives_on => self.answer_when_ended(context, *sink),
            Event::Posted { sink, .. } | Event::Listened { sink, .. } | Event::Deleted { sink } => {
                let refusal = if lives_on { Refusal::Moved } else { Refusal::UnknownSession };
                context.refuse_sink(*sink, refusal);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_leaves_at_once_does_not_wait_again_and_one_that_sleeps_is_kept() {
        let mut lifecycle = Lifecycle::new(Millis(0));
        lifecycle.fall_asleep();
        lifecycle.stay_awake();
        assert_eq!(lifecycle.leaving(), None);
        lifecycle.begin_hand_over(true);
        lifecycle.begin_hand_over(false);
        lifecycle.stay_awake();
        assert_eq!(lifecycle.leaving(), Some(Leaving::AtOnce));
    }

    #[test]
    fn a_hand_over_can_be_cancelled_unless_it_is_at_once() {
        let mut lifecycle = Lifecycle::new(Millis(0));
        lifecycle.begin_hand_over(false);
        lifecycle.cancel_hand_over();
        assert_eq!(lifecycle.leaving(), None);
        lifecycle.begin_hand_over(true);
        lifecycle.cancel_hand_over();
        assert_eq!(lifecycle.leaving(), Some(Leaving::AtOnce));
    }
}

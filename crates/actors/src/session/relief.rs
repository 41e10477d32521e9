//! What a session is asked to release when its tenant keeps too many bytes.

use conversation::BudgetVerdict;

/// A step of relief.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relief {
    /// Cut the reply queues that hold at least so many bytes.
    CutQueues {
        /// The bytes.
        from: usize,
    },
    /// Pass this verdict to the session.
    Verdict(BudgetVerdict),
}

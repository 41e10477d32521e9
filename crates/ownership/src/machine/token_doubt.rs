//! Whether the record names this owner under the token that the owner knows.

use crate::{Expected, Owner, Token};

/// A claim that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentClaim {
    /// The failover generation in which it was sent.
    pub(super) failover_generation: u64,
    pub(super) expected: Expected,
    pub(super) new: Owner,
}

/// What the record may hold instead of the owner's token. Boxed: only a lapse of the lease or a
/// failover makes it uncertain.
#[derive(Debug)]
pub(super) enum TokenDoubt {
    /// Only the owner's token.
    None,
    /// A claim was sent whose outcome is not known.
    ClaimSent(Box<SentClaim>),
    /// The record names this node under this token: a late claim of its own.
    LateClaim(Box<Token>),
    /// As `LateClaim`; and a claim was sent whose outcome is not known.
    LateClaimAndSent(Box<(Token, SentClaim)>),
}

impl TokenDoubt {
    /// The token of a late claim that the record holds.
    pub(super) fn late_claim(&self) -> Option<Token> {
        match self {
            Self::None | Self::ClaimSent(_) => None,
            Self::LateClaim(token) => Some(**token),
            Self::LateClaimAndSent(both) => Some(both.0),
        }
    }

    /// The claim whose outcome is not known.
    pub(super) fn sent_claim(&self) -> Option<SentClaim> {
        match self {
            Self::None | Self::LateClaim(_) => None,
            Self::ClaimSent(sent) => Some(**sent),
            Self::LateClaimAndSent(both) => Some(both.1),
        }
    }

    /// A claim is sent.
    pub(super) fn set_sent(&mut self, claim: SentClaim) {
        *self = match self.late_claim() {
            Some(late) => Self::LateClaimAndSent(Box::new((late, claim))),
            None => Self::ClaimSent(Box::new(claim)),
        };
    }

    /// The store has a record older than the owner's token: it has lost the late claim. A claim
    /// that was sent may yet be done.
    pub(super) fn forget_late_claim(&mut self) {
        if self.late_claim().is_some() {
            *self = match self.sent_claim() {
                Some(sent) => Self::ClaimSent(Box::new(sent)),
                None => Self::None,
            };
        }
    }

    /// The store has lost the record, with a late claim and every claim from it.
    pub(super) fn forget_late_claim_and_its_successor(&mut self) {
        if self.late_claim().is_some() {
            *self = Self::None;
        }
    }
}

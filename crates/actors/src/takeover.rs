//! Finds the owner of a session, and claims a session without an owner.

mod claim;
mod find;
mod ongoing_claims;

pub(crate) use self::find::{Found, Identity, find_session};
pub(crate) use self::ongoing_claims::OngoingClaims;

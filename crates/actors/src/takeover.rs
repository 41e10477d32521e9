//! Finds the owner of a session, and claims a session without an owner.

mod claim;
mod end;
mod find;
mod ongoing_claims;

pub(crate) use self::end::{end_ownerless, until_claimed};
pub(crate) use self::find::{Found, Identity, find_session};
pub(crate) use self::ongoing_claims::OngoingClaims;

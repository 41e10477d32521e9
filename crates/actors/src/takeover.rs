//! Finds the node that has a session, and claims a session that no node has.

mod claim;
mod find;
mod ongoing_claims;

pub(crate) use self::find::{Found, Identity, find_session};
pub(crate) use self::ongoing_claims::OngoingClaims;

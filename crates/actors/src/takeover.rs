//! Finds the node that has a session, and claims a session that no node has.

mod claim;
mod find;
mod under_way;

pub(crate) use self::find::{Found, Identity, find_session};
pub(crate) use self::under_way::ClaimsUnderWay;

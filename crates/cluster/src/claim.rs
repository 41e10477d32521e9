//! Claims a session from the owner that its record names.

use std::sync::Arc;
use std::time::Duration;

use protocol::SessionId;
use store::{Claimed, Owner, Record};
use tokio::time::sleep;

use crate::node::MemberNode;
use crate::{Error, metrics};
use ownership::location::{self, Outcome};
use ownership::machine::Stabilisation;

/// The most attempts for a claim whose outcome is unknown. Each attempt sends the same claim.
const TRIES: u32 = 4;
/// The wait between two attempts.
const AGAIN: Duration = Duration::from_millis(50);

/// Claims a session from the owner that its record names.
pub(crate) async fn claim(
    node: &Arc<MemberNode>,
    session: &SessionId,
    record: &Record,
    ttl: Duration,
) -> Result<Claimed, Error> {
    let random = getrandom::u64().map_err(|error| {
        Error::Settings(format!("the operating system returned no random bytes: {error}"))
    })?;
    let owner = record.owner.token;
    let new = Owner { token: owner.next(random), node: node.incarnation };
    let expected = location::expected(record);
    let mut tries = 1;
    loop {
        let generation = node.failovers.generation(session, node.lease.now());
        let is_stable = generation.stabilisation == Stabilisation::Done;
        let lease_generation = if is_stable { node.valid_lease_generation().await } else { None };
        location::may_claim(is_stable, lease_generation.is_some())?;
        let answer = node.store.claim(session, expected, new, generation.primary, ttl).await;
        // The node's lease must be valid when the node claims and when the store answers: a node
        // without a lease cannot decide that another one is gone. If the lease lapsed in between,
        // the node claims the session again, from itself.
        let lease_held = answer.is_ok() && node.holds_on(lease_generation).await;
        match (location::claim_outcome(&answer, lease_held), answer) {
            (Outcome::Claimed, Ok(claimed)) => {
                metrics::CLAIMS.inc();
                return Ok(claimed);
            }
            (Outcome::Taken, _) => return Err(Error::Taken),
            (Outcome::NotKnown, Err(_)) if tries < TRIES => {
                tries += 1;
                sleep(AGAIN).await;
            }
            (_, Err(error)) => return Err(Error::Store(error)),
            (_, Ok(_)) => return Err(Error::NoLease),
        }
    }
}

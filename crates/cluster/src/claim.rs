//! Taking a session over.

use std::sync::Arc;
use std::time::Duration;

use protocol::SessionId;
use store::{Claimed, Error as StoreError, Expected, Owner, Record, Standing};
use tokio::time::sleep;

use crate::node::Node;
use crate::tenure::Settling;
use crate::{Error, metrics};

/// How often a claim is sent whose outcome is not known; it is the same claim each time.
const TRIES: u32 = 4;
/// How long to wait before it is sent again.
const AGAIN: Duration = Duration::from_millis(50);

/// Claims a session from whom its record names.
pub(crate) async fn claim(
    node: &Arc<Node>,
    session: &SessionId,
    record: &Record,
    ttl: Duration,
) -> Result<Claimed, Error> {
    let random = getrandom::u64()
        .map_err(|error| Error::Settings(format!("the system has no random bits: {error}")))?;
    let owner = record.owner.token;
    let new = Owner { token: owner.next(random), node: node.incarnation };
    let expected = match record.standing {
        Standing::Released => Expected::Released,
        Standing::Owned | Standing::Ended => Expected::Token(owner),
    };
    let mut tries = 1;
    loop {
        let (_, settling) = node.eras.of(session, node.right.now());
        if settling != Settling::Done {
            return Err(Error::Settling);
        }
        // A node that was away cannot say who is gone. Its own lease must hold when it
        // claims and when it is answered; what it claimed otherwise, it claims from itself.
        let right = node.right.epoch_if_valid().ok_or(Error::NoLease)?;
        let came = node.store.claim(session, expected, new, ttl).await;
        match came {
            Ok(claimed) if node.right.epoch_if_valid() == Some(right) => {
                metrics::CLAIMS.inc();
                return Ok(claimed);
            }
            Ok(_) => return Err(Error::NoLease),
            Err(StoreError::Fenced(_) | StoreError::Missing | StoreError::Ended) => {
                return Err(Error::Taken);
            }
            // Whoever released it a moment ago is expected under its token.
            Err(StoreError::Released) => return Err(Error::Taken),
            Err(StoreError::Unavailable(_)) if tries < TRIES => {
                tries += 1;
                sleep(AGAIN).await;
            }
            Err(error) => return Err(Error::Store(error)),
        }
    }
}

//! Locates a session: from the cache, or from its record in the store.

use std::sync::Arc;

use protocol::SessionId;
use store::Presence;

use crate::node::MemberNode;
use crate::{Error, Peer, SessionLocation};
use ownership::location::{self, Location};
use ownership::machine::Stabilisation;

/// Locates a session. `fresh`: bypasses the cache.
pub(crate) async fn locate(
    node: &Arc<MemberNode>,
    session: &SessionId,
    fresh: bool,
) -> Result<SessionLocation, Error> {
    if !fresh
        && let Some(owner) = node.location_cache.get(session)
        && let Some(link) = node.members.link_to(owner)
    {
        return Ok(SessionLocation::There(Peer { node: node.clone(), link }));
    }
    let location = look_up(node, session, fresh).await?;
    match &location {
        SessionLocation::There(peer) => node.location_cache.insert(session, peer.link.incarnation),
        // Only sessions at peers are cached: the registry knows the local ones, and a claim changes
        // the others.
        _ => node.location_cache.forget(session),
    }
    Ok(location)
}

async fn look_up(
    node: &Arc<MemberNode>,
    session: &SessionId,
    fresh: bool,
) -> Result<SessionLocation, Error> {
    let lease_generation = node.valid_lease_generation().await;
    let Some(record) = node.store.read(session).await.map_err(Error::Store)? else {
        let stabilisation = node.failovers.generation(session, node.lease.now()).stabilisation;
        let is_stable = stabilisation == Stabilisation::Done;
        let lease_held = is_stable && node.holds_on(lease_generation).await;
        location::is_unknown(is_stable, lease_held)?;
        return Ok(SessionLocation::Unknown);
    };
    let record = Box::new(record);
    let owner = match location::of_record(&record, node.incarnation) {
        Location::Ended => return Ok(SessionLocation::Ended(record)),
        Location::Here => return Ok(SessionLocation::Here(record)),
        Location::Ownerless(cause) => return Ok(SessionLocation::Ownerless(record, cause)),
        // A cluster of one keeps no leases, so it cannot tell whether another owner is alive.
        Location::At(_) if node.is_alone => return Ok(SessionLocation::Unknown),
        Location::At(owner) => owner,
    };
    let there = |link| SessionLocation::There(Peer { node: node.clone(), link });
    if !fresh && let Some(link) = node.members.link_to(owner) {
        return Ok(there(link));
    }
    let lease_generation = node.valid_lease_generation().await;
    let presence = node.store.presence(owner).await.map_err(Error::Store)?;
    let proves = node.lapse_proves();
    // The lease is awaited only where it decides: a node that doubts its lease waits for the next
    // renewal.
    let decides = presence == Presence::Gone && proves.is_ok();
    let lease_held = decides && node.holds_on(lease_generation).await;
    match (location::claimable(&presence, proves, lease_held)?, presence) {
        (None, Presence::Live(lease)) => Ok(there(node.members.link_by(lease))),
        (None, _) => Err(Error::NoLease),
        (Some(cause), _) => {
            node.members.forget(owner);
            Ok(SessionLocation::Ownerless(record, cause))
        }
    }
}

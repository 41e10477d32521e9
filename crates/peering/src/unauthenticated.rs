//! The connections whose other ends are not authenticated yet. Their number is bounded, and one
//! address cannot take all places.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::metrics;

/// The most connections that are not authenticated yet. At this bound a new connection closes one of
/// them: the oldest of the address that has most. So connections that send nothing keep no peer out,
/// and connections of one address close those of another only if that has as many.
const UNAUTHENTICATED_MAX: usize = 64;

/// The connections, oldest first.
#[derive(Default)]
pub(crate) struct UnauthenticatedConnections(Mutex<Places>);

#[derive(Default)]
struct Places {
    next: u64,
    taken: BTreeMap<u64, Place>,
}

/// The place of one connection.
struct Place {
    address: IpAddr,
    /// Closes the connection.
    close: CancellationToken,
}

impl UnauthenticatedConnections {
    /// Adds a connection, and returns its number. At the bound another one is closed.
    pub(crate) fn add(&self, from: IpAddr, close: CancellationToken) -> u64 {
        let mut places = self.lock();
        let number = places.next;
        places.next += 1;
        places.taken.insert(number, Place { address: counted_as(from), close });
        if places.taken.len() > UNAUTHENTICATED_MAX
            && let Some(oldest) = places.oldest_of_largest()
            && let Some(place) = places.taken.remove(&oldest)
        {
            metrics::LINKS_REFUSED.inc();
            tracing::debug!(
                address = %place.address,
                "closed an unauthenticated connection: there are too many"
            );
            place.close.cancel();
        }
        number
    }

    /// Removes a connection that is authenticated or closed.
    pub(crate) fn remove(&self, number: u64) {
        self.lock().taken.remove(&number);
    }

    /// No code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    /// The oldest connection of the address that has most connections; of several such addresses, the
    /// oldest of all their connections.
    fn oldest_of_largest(&self) -> Option<u64> {
        let mut counts = HashMap::<IpAddr, usize>::new();
        for place in self.taken.values() {
            *counts.entry(place.address).or_default() += 1;
        }
        let most = counts.values().copied().max()?;
        let mut oldest_first = self.taken.iter();
        oldest_first.find(|(_, place)| counts[&place.address] == most).map(|(number, _)| *number)
    }
}

/// The address under which a connection is counted: an IPv4 address, or an IPv6 network of 64 bits, of
/// which one subscriber has all addresses. `front` counts clients in the same way. It also has
/// exceptions for proxies, which peers do not have, and no crate that both use is about addresses.
fn counted_as(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (!0 << 64)).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds connections of one address; returns the tokens that close them.
    fn add(all: &UnauthenticatedConnections, from: &str, count: usize) -> Vec<CancellationToken> {
        let one = || {
            let close = CancellationToken::new();
            all.add(from.parse().unwrap(), close.clone());
            close
        };
        std::iter::repeat_with(one).take(count).collect()
    }

    fn open(connections: &[CancellationToken]) -> usize {
        connections.iter().filter(|close| !close.is_cancelled()).count()
    }

    #[test]
    fn one_address_that_connects_without_end_closes_no_connection_of_another() {
        let all = UnauthenticatedConnections::default();
        let stranger = add(&all, "198.51.100.1", 200);
        assert_eq!(open(&stranger), UNAUTHENTICATED_MAX);
        let peer = add(&all, "198.51.100.2", 2);
        let more = add(&all, "::ffff:198.51.100.1", 200);
        assert_eq!((open(&peer), open(&stranger), open(&more)), (2, 0, UNAUTHENTICATED_MAX - 2));
    }

    #[test]
    fn all_addresses_of_an_ipv6_network_are_one() {
        let all = UnauthenticatedConnections::default();
        let peer = add(&all, "2001:db8:0:1::1", 1);
        for last in 0..200 {
            add(&all, &format!("2001:db8::{last:x}"), 1);
        }
        assert_eq!(open(&peer), 1);
    }

    #[test]
    fn of_addresses_with_as_many_connections_the_oldest_connection_is_closed() {
        let all = UnauthenticatedConnections::default();
        let first = add(&all, "198.51.100.1", UNAUTHENTICATED_MAX / 2);
        let second = add(&all, "198.51.100.2", UNAUTHENTICATED_MAX / 2);
        let third = add(&all, "198.51.100.3", 1);
        assert!(first[0].is_cancelled());
        assert_eq!(open(&first) + open(&second) + open(&third), UNAUTHENTICATED_MAX);
    }

    #[test]
    fn a_connection_that_is_over_leaves_its_place() {
        let all = UnauthenticatedConnections::default();
        let number = all.add("198.51.100.1".parse().unwrap(), CancellationToken::new());
        all.remove(number);
        let peers = add(&all, "198.51.100.2", UNAUTHENTICATED_MAX);
        assert_eq!(open(&peers), UNAUTHENTICATED_MAX);
    }
}

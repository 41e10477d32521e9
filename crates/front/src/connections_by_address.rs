//! Bounds the connections that one address has. All workers share the counts.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::client_address::{AddressKey, TrustedProxies};
use crate::{Error, Settings};

/// The open connections of each address that is neither private nor a trusted proxy's. The number
/// of all connections bounds the number of addresses.
#[derive(Debug)]
pub(crate) struct ConnectionsByAddress {
    proxies: TrustedProxies,
    /// Most connections of an address; 0 for no limit.
    max: usize,
    open: Mutex<HashMap<AddressKey, usize>>,
}

/// A connection that is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct CountedConnection {
    connections: Arc<ConnectionsByAddress>,
    address: AddressKey,
}

/// The address has as many connections as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

impl ConnectionsByAddress {
    /// No connections yet.
    pub(crate) fn new(settings: &Settings) -> Result<Self, Error> {
        let half = (settings.connections_max * settings.worker_count() / 2).max(1);
        Ok(Self {
            proxies: TrustedProxies::new(settings)?,
            max: settings.connections_per_address_max.min(half),
            open: Mutex::default(),
        })
    }

    /// Counts a connection, if its address is a client's.
    pub(crate) fn count(
        self: &Arc<Self>,
        peer: Option<IpAddr>,
    ) -> Result<Option<CountedConnection>, TooMany> {
        let address =
            peer.filter(|_| self.max > 0).and_then(|peer| self.proxies.direct_client(peer));
        let Some(address) = address else { return Ok(None) };
        let mut all = self.open();
        let open = all.entry(address).or_default();
        if *open >= self.max {
            return Err(TooMany);
        }
        *open += 1;
        Ok(Some(CountedConnection { connections: Arc::clone(self), address }))
    }

    /// No code panics while it holds the lock, so the counts are right in any case.
    fn open(&self) -> MutexGuard<'_, HashMap<AddressKey, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let mut all = self.connections.open();
        if let Some(open) = all.get_mut(&self.address) {
            *open -= 1;
            if *open == 0 {
                all.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(max: usize) -> Arc<ConnectionsByAddress> {
        let settings = Settings {
            workers: 1,
            connections_max: 10,
            connections_per_address_max: max,
            trusted_proxies: vec!["203.0.113.1".into()],
            ..Settings::default()
        };
        Arc::new(ConnectionsByAddress::new(&settings).unwrap())
    }

    #[test]
    fn an_address_has_a_bound_and_gets_a_place_back() {
        let all = connections(2);
        let count = |peer: &str| all.count(Some(peer.parse().unwrap()));
        let first = count("198.51.100.1").unwrap();
        let second = count("::ffff:198.51.100.1").unwrap();
        assert_eq!(count("198.51.100.1").unwrap_err(), TooMany);
        assert!(count("198.51.100.2").unwrap().is_some());
        drop(first);
        let third = count("198.51.100.1").unwrap();
        assert!(third.is_some() && count("198.51.100.1").is_err());
        drop((second, third));
        assert!(all.open().is_empty());
    }

    #[test]
    fn all_addresses_of_an_ipv6_network_are_one() {
        let all = connections(1);
        let _first = all.count(Some("2001:db8::1".parse().unwrap())).unwrap();
        assert!(all.count(Some("2001:db8::2".parse().unwrap())).is_err());
        assert!(all.count(Some("2001:db8:0:1::1".parse().unwrap())).is_ok());
    }

    #[test]
    fn private_addresses_and_proxies_have_no_bound_and_half_of_all_is_the_most() {
        for (peer, most) in [("127.0.0.1", 20), ("203.0.113.1", 20), ("198.51.100.1", 5)] {
            let all = connections(1_000);
            let held: Vec<_> = (0..20).map_while(|_| all.count(peer.parse().ok()).ok()).collect();
            assert_eq!(held.len(), most, "{peer}");
        }
        let off = connections(0);
        let held: Vec<_> = (0..20).map(|_| off.count("198.51.100.1".parse().ok())).collect();
        assert!(held.iter().all(Result::is_ok));
    }
}

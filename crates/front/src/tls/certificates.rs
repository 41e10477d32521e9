//! Which certificate a client gets.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::pair::CertificatePair;
use crate::metrics;

/// The name of the default certificate in metrics and logs.
pub const DEFAULT_PAIR: &str = "default";

/// The certificates of a listener.
#[derive(Clone, Debug)]
pub struct CertificatePairs {
    /// The one for clients that name no host, or a host that no certificate has.
    pub default: CertificatePair,
    /// The others, by the names that the settings give them. Of several with one host, the first one
    /// in alphabetical order counts for it.
    pub named: BTreeMap<String, CertificatePair>,
}

impl CertificatePairs {
    /// All certificates with their names, the default one first.
    pub fn all(&self) -> impl Iterator<Item = (&str, &CertificatePair)> {
        let named = self.named.iter().map(|(name, pair)| (name.as_str(), pair));
        std::iter::once((DEFAULT_PAIR, &self.default)).chain(named)
    }

    /// Whether a certificate is for this host: a name in lower case, or an address, in brackets if it
    /// is one of IPv6. Clients do not send addresses, so they get the default certificate.
    pub fn cover(&self, host: &str) -> bool {
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            return self.default.has_address(address);
        }
        let has = |name: &str| self.all().any(|(_, pair)| pair.hosts().iter().any(|h| h == name));
        has(host) || wildcard(host).is_some_and(|wildcard| has(&wildcard))
    }
}

/// Finds the certificate for a handshake. Handshakes of all workers share it.
pub(super) struct Certificates(RwLock<Table>);

struct Table {
    default: Arc<CertifiedKey>,
    by_host: HashMap<String, Arc<CertifiedKey>>,
}

impl Certificates {
    pub(super) fn new(pairs: CertificatePairs) -> Self {
        show(&pairs);
        Self(RwLock::new(Table::new(&pairs)))
    }

    pub(super) fn replace(&self, pairs: CertificatePairs) {
        let table = Table::new(&pairs);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = table;
        show(&pairs);
    }
}

impl Table {
    fn new(pairs: &CertificatePairs) -> Self {
        let mut by_host = HashMap::new();
        // The default certificate counts last: a named one was written for its hosts.
        let named = pairs.named.values().chain([&pairs.default]);
        for (pair, host) in named.flat_map(|pair| pair.hosts().iter().map(move |host| (pair, host)))
        {
            by_host.entry(host.clone()).or_insert_with(|| Arc::clone(pair.key()));
        }
        Self { default: Arc::clone(pairs.default.key()), by_host }
    }

    /// The certificate for the name that a client sent; rustls has checked that it is one, and sends
    /// it in lower case.
    fn find(&self, host: Option<&str>) -> &Arc<CertifiedKey> {
        let find = |host: &str| {
            let exact = self.by_host.get(host);
            exact.or_else(|| self.by_host.get(&wildcard(host)?))
        };
        host.and_then(find).unwrap_or(&self.default)
    }
}

/// The name in a certificate that stands for this host and others beside it.
fn wildcard(host: &str) -> Option<String> {
    host.split_once('.').map(|(_, parent)| format!("*.{parent}"))
}

fn show(pairs: &CertificatePairs) {
    metrics::show_certificates(pairs.all().map(|(name, pair)| (name, pair.ends())));
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let host = hello.server_name().map(|host| host.trim_end_matches('.').to_ascii_lowercase());
        // No code panics while it holds the lock.
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(table.find(host.as_deref())))
    }
}

impl fmt::Debug for Certificates {
    /// Omits the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(hosts: &[&str]) -> CertificatePair {
        let hosts = hosts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let made = rcgen::generate_simple_self_signed(hosts).unwrap();
        CertificatePair::read(&made.cert.pem(), &made.signing_key.serialize_pem()).unwrap()
    }

    fn pairs() -> CertificatePairs {
        let named = [
            ("a", pair(&["acme.example.com"])),
            ("b", pair(&["*.example.com", "Acme.example.com", "example.org"])),
        ];
        CertificatePairs {
            default: pair(&["mcp.example.com", "127.0.0.1", "2001:db8::1"]),
            named: named.map(|(name, pair)| (name.to_owned(), pair)).into(),
        }
    }

    /// Checks which certificate a client gets that sends this name.
    #[track_caller]
    fn check(host: Option<&str>, name: &str) {
        let pairs = pairs();
        let table = Table::new(&pairs);
        let found = table.find(host);
        let (_, expected) = pairs.all().find(|(other, _)| *other == name).unwrap();
        assert!(Arc::ptr_eq(found, expected.key()), "{host:?}");
    }

    #[test]
    fn a_client_gets_the_certificate_of_its_host_or_the_default() {
        check(Some("acme.example.com"), "a");
        check(Some("example.org"), "b");
        check(Some("other.example.com"), "b");
        check(Some("mcp.example.com"), DEFAULT_PAIR);
        check(Some("www.example.org"), DEFAULT_PAIR);
        check(Some("a.b.example.com"), DEFAULT_PAIR);
        check(Some("localhost"), DEFAULT_PAIR);
        check(None, DEFAULT_PAIR);
    }

    #[test]
    fn a_host_is_covered_by_its_name_by_a_wildcard_or_as_an_address_of_the_default() {
        let pairs = pairs();
        for host in
            ["acme.example.com", "x.example.com", "example.org", "127.0.0.1", "[2001:db8::1]"]
        {
            assert!(pairs.cover(host), "{host}");
        }
        for host in ["example.com", "x.y.example.com", "www.example.org", "127.0.0.2", "localhost"]
        {
            assert!(!pairs.cover(host), "{host}");
        }
    }
}

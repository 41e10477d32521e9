//! Determines the address of the client that a request came from.
//!
//! A client can write anything into `X-Forwarded-For`; the proxy in front of the node appends the
//! address that it saw. The list is therefore read from its end, and only as far as the operator
//! trusts the proxies that wrote it. This file reads no socket and keeps no state.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::{Error, Settings};

/// The word that stands for every private address in `front.trusted_proxies`.
const PRIVATE: &str = "private";

/// Which proxies may say where a client is.
#[derive(Clone, Debug, Default)]
pub(crate) struct TrustedProxies {
    networks: Vec<IpNet>,
    private: bool,
}

/// An address that counts as one client: an IPv4 address, or an IPv6 network of 64 bits, of which
/// one subscriber has all addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AddressKey(IpAddr);

/// Why the address of a client is not known. Limits by address do not apply to such a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// The connection comes from a private address that is not trusted: this is a proxy that the
    /// settings do not name, or a client in the same network.
    PrivatePeer,
    /// A trusted proxy names no client.
    NotForwarded,
}

impl AddressKey {
    /// The key of a connection's own address, of any kind.
    pub(crate) fn of_peer(peer: IpAddr) -> Self {
        key(peer.to_canonical())
    }

    /// The address, or the first one of the network.
    pub(crate) fn address(self) -> IpAddr {
        self.0
    }
}

impl TrustedProxies {
    /// The proxies that the settings name.
    pub(crate) fn new(settings: &Settings) -> Result<Self, Error> {
        let mut trusted = Self::default();
        for written in &settings.trusted_proxies {
            match network(written) {
                Some(network) => trusted.networks.push(network),
                None if written == PRIVATE => trusted.private = true,
                None => {
                    return Err(Error::Setting {
                        setting: "front.trusted_proxies",
                        written: written.clone(),
                        remedy: "write an address, a network as in \"10.0.0.0/8\", or \"private\""
                            .into(),
                    });
                }
            }
        }
        Ok(trusted)
    }

    /// The client of a request: the last address of `X-Forwarded-For` that is not a trusted
    /// proxy's, or the peer's own, if the peer is not a trusted proxy. `forwarded` are the values of
    /// that header, in the order of the request. If all addresses are trusted, the first one counts.
    pub(crate) fn client<'h>(
        &self,
        peer: IpAddr,
        forwarded: impl DoubleEndedIterator<Item = &'h [u8]>,
    ) -> Result<AddressKey, Unknown> {
        let peer = peer.to_canonical();
        if !self.trusts(peer) {
            return if is_private(peer) { Err(Unknown::PrivatePeer) } else { Ok(key(peer)) };
        }
        let mut nearest = Err(Unknown::NotForwarded);
        let entries = forwarded.rev().flat_map(|value| value.rsplit(|byte| *byte == b','));
        for entry in entries.map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty()) {
            // A trusted proxy wrote this entry. If it is not an address, no entry before it can be
            // attributed to a proxy.
            let address = address(entry).ok_or(Unknown::NotForwarded)?;
            nearest = Ok(key(address));
            if !self.trusts(address) {
                break;
            }
        }
        nearest
    }

    /// The client of a connection, if the connection itself comes from a client: a private or
    /// trusted address may be a proxy, which has the connections of many clients.
    pub(crate) fn direct_client(&self, peer: IpAddr) -> Option<AddressKey> {
        let peer = peer.to_canonical();
        (!self.trusts(peer) && !is_private(peer)).then(|| key(peer))
    }

    fn trusts(&self, address: IpAddr) -> bool {
        (self.private && is_private(address))
            || self.networks.iter().any(|network| network.contains(&address))
    }
}

/// A network in CIDR notation, or a single address.
fn network(written: &str) -> Option<IpNet> {
    let one = || written.parse::<IpAddr>().ok().map(IpNet::from);
    let network = written.parse().ok().or_else(one);
    network.map(|network: IpNet| network.trunc())
}

fn key(address: IpAddr) -> AddressKey {
    AddressKey(match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (!0 << 64)).into(),
    })
}

/// An entry of `X-Forwarded-For`: an address, which may have a port; with a port, an IPv6 address
/// is in brackets.
fn address(entry: &[u8]) -> Option<IpAddr> {
    let entry = std::str::from_utf8(entry).ok()?;
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let address: IpAddr = match entry.strip_prefix('[') {
        Some(rest) => match rest.split_once(']')? {
            (address, "") => address.parse::<Ipv6Addr>().ok()?.into(),
            (address, port) if port.strip_prefix(':').is_some_and(is_port) => {
                address.parse::<Ipv6Addr>().ok()?.into()
            }
            _ => return None,
        },
        None => entry.parse().ok().or_else(|| {
            let (address, port) = entry.split_once(':')?;
            is_port(port).then(|| address.parse::<Ipv4Addr>().ok().map(IpAddr::V4))?
        })?,
    };
    Some(address.to_canonical())
}

/// Is this an address that no client on the internet has?
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let is_shared = address.octets()[0] == 100 && address.octets()[1] & 0xc0 == 64;
            address.is_private() || address.is_loopback() || address.is_link_local() || is_shared
        }
        IpAddr::V6(address) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn proxies(written: &[&str]) -> TrustedProxies {
        let trusted_proxies = written.iter().map(ToString::to_string).collect();
        TrustedProxies::new(&Settings { trusted_proxies, ..Settings::default() }).unwrap()
    }

    fn client(trusted: &[&str], peer: &str, forwarded: &[&str]) -> Result<String, Unknown> {
        let forwarded = forwarded.iter().map(|value| value.as_bytes());
        let client = proxies(trusted).client(peer.parse().unwrap(), forwarded);
        client.map(|AddressKey(address)| address.to_string())
    }

    #[track_caller]
    fn check(trusted: &[&str], peer: &str, forwarded: &[&str], expected: &str) {
        assert_eq!(client(trusted, peer, forwarded).as_deref(), Ok(expected), "{forwarded:?}");
    }

    #[test]
    fn without_a_trusted_proxy_the_peer_is_the_client() {
        check(&[], "203.0.113.9", &["198.51.100.1"], "203.0.113.9");
        check(&["10.0.0.0/8"], "203.0.113.9", &["198.51.100.1"], "203.0.113.9");
        check(&[], "2001:db8:1:2:3:4:5:6", &[], "2001:db8:1:2::");
        check(&[], "::ffff:203.0.113.9", &[], "203.0.113.9");
    }

    #[test]
    fn a_private_peer_that_is_not_trusted_is_no_client() {
        for peer in ["127.0.0.1", "10.1.2.3", "192.168.0.1", "100.64.1.1", "::1", "fd00::1"] {
            assert_eq!(client(&[], peer, &["198.51.100.1"]), Err(Unknown::PrivatePeer), "{peer}");
        }
        check(&[], "100.128.0.1", &[], "100.128.0.1");
    }

    #[test]
    fn the_last_entry_that_is_not_a_trusted_proxy_is_the_client() {
        let trusted = &["10.0.0.0/8", "2001:db8:ff::/48", "192.0.2.7"];
        check(trusted, "10.0.0.1", &["198.51.100.1"], "198.51.100.1");
        check(trusted, "10.0.0.1", &["1.1.1.1, 198.51.100.1"], "198.51.100.1");
        check(trusted, "10.0.0.1", &["1.1.1.1", "198.51.100.1, 192.0.2.7"], "198.51.100.1");
        check(trusted, "::ffff:10.0.0.1", &["198.51.100.1,2001:db8:ff::9"], "198.51.100.1");
        check(trusted, "10.0.0.1", &["198.51.100.1, ,"], "198.51.100.1");
        // Nothing before the client's own address is read.
        check(trusted, "10.0.0.1", &["10.0.0.9, <script>, 198.51.100.1"], "198.51.100.1");
    }

    #[test]
    fn if_every_entry_is_a_proxy_the_first_one_is_the_client() {
        check(&["private"], "10.0.0.1", &["10.0.0.9, 192.168.1.1"], "10.0.0.9");
    }

    #[test]
    fn entries_may_have_ports_and_brackets() {
        for (entry, expected) in [
            ("198.51.100.1:4711", "198.51.100.1"),
            ("[2001:db8::1]:443", "2001:db8::"),
            ("[2001:db8::1]", "2001:db8::"),
            ("2001:db8::1", "2001:db8::"),
            ("::ffff:198.51.100.1", "198.51.100.1"),
        ] {
            check(&["private"], "127.0.0.1", &[entry], expected);
        }
    }

    #[test]
    fn a_proxy_that_names_no_address_leaves_the_client_unknown() {
        for entry in [
            "",
            "unknown",
            "unix:",
            "_hidden",
            "198.51.100.1:http",
            "198.51.100.1:+80",
            "[198.51.100.1]",
            "[::1",
            "[::1]x",
            "fe80::1%eth0",
            "1.2.3",
            "01.2.3.4",
            "\"[2001:db8::1]\"",
            "8.8.8.8, unknown",
        ] {
            let unknown = client(&["private"], "127.0.0.1", &[entry]);
            assert_eq!(unknown, Err(Unknown::NotForwarded), "{entry}");
        }
        assert_eq!(client(&["private"], "127.0.0.1", &[]), Err(Unknown::NotForwarded));
    }

    #[test]
    fn a_connection_of_a_proxy_belongs_to_no_client() {
        let trusted = proxies(&["203.0.113.0/24"]);
        let direct = |peer: &str| trusted.direct_client(peer.parse().unwrap()).is_some();
        assert!(direct("198.51.100.1") && !direct("203.0.113.9") && !direct("10.0.0.1"));
    }

    #[test]
    fn what_is_no_network_is_refused_with_what_to_write() {
        for written in ["proxy.example", "10.0.0.0/33", "Private", "", "10.0.0.*"] {
            let trusted_proxies = vec![written.to_owned()];
            let settings = Settings { trusted_proxies, ..Settings::default() };
            let refusal = TrustedProxies::new(&settings).unwrap_err().to_string();
            assert!(refusal.contains("`front.trusted_proxies`"), "{refusal}");
            assert!(refusal.contains("10.0.0.0/8"), "{refusal}");
        }
    }

    proptest! {
        /// No header of a client changes the result: it is the address that the trusted proxy saw.
        #[test]
        fn no_header_of_a_client_changes_its_address(
            spoofed in prop::collection::vec("\\PC{0,40}|([0-9a-f:.,\\[\\] ]{0,40})", 0..4),
            bits in any::<u32>(),
            joined in any::<bool>(),
        ) {
            let seen = Ipv4Addr::from_bits(bits);
            prop_assume!(!is_private(seen.into()));
            let mut forwarded = spoofed;
            match forwarded.last_mut() {
                Some(last) if joined => *last = format!("{last}, {seen}"),
                _ => forwarded.push(seen.to_string()),
            }
            let forwarded: Vec<_> = forwarded.iter().map(String::as_str).collect();
            prop_assert_eq!(client(&["private"], "10.0.0.1", &forwarded), Ok(seen.to_string()));
            // A client that connects to the node itself.
            let direct = client(&["private"], &seen.to_string(), &forwarded);
            prop_assert_eq!(direct, Ok(seen.to_string()));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..4)) {
            let values = values.iter().map(Vec::as_slice);
            let _ = proxies(&["private"]).client(Ipv4Addr::LOCALHOST.into(), values);
        }

        #[test]
        fn each_written_address_is_read(v4 in any::<u32>(), v6 in any::<u128>(), port in any::<u16>()) {
            let v4 = Ipv4Addr::from_bits(v4);
            let v6 = Ipv6Addr::from_bits(v6);
            prop_assert_eq!(address(format!("{v4}:{port}").as_bytes()), Some(v4.into()));
            prop_assert_eq!(address(format!("[{v6}]:{port}").as_bytes()), Some(IpAddr::from(v6).to_canonical()));
            prop_assert_eq!(address(v6.to_string().as_bytes()), Some(IpAddr::from(v6).to_canonical()));
        }
    }
}

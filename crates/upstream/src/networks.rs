//! Which addresses an upstream server may have.
//!
//! An address is judged after its name was resolved, each time a connection is opened, and the connection
//! is opened to the address that was judged. So a name that changes its address gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The addresses that are permitted: public ones, and those of networks that the settings name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Networks(Vec<IpNet>);

impl Networks {
    pub(crate) fn new(allowed: &[IpNet]) -> Self {
        Self(allowed.to_vec())
    }

    pub(crate) fn permit(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public(address) || self.0.iter().any(|network| network.contains(&address))
    }
}

/// Whether the address is one of the public internet.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match embedded(address) {
            Some(inner) => is_public_v4(inner),
            None => is_public_v6(address),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_shared = a == 100 && (b & 0xC0) == 64;
    let is_benchmark = a == 198 && (b & 0xFE) == 18;
    let is_protocol = (a, b, c) == (192, 0, 0);
    let is_reserved = a == 0 || a >= 240;
    !(address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || is_shared
        || is_benchmark
        || is_protocol
        || is_reserved)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    // Global unicast addresses are in 2000::/3; the rest is local, mapped or reserved.
    let [first, second, ..] = address.segments();
    let is_documentation = (first, second) == (0x2001, 0xdb8) || first & 0xfff0 == 0x3ff0;
    let is_protocol = first == 0x2001 && second < 0x200;
    first & 0xe000 == 0x2000 && !is_documentation && !is_protocol
}

/// The IPv4 address to which a translator or a tunnel leads: NAT64 (RFC 6052), or 6to4 (RFC 3056).
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let segments = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match segments {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(v4(high, low)),
        [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(allowed: &[&str], address: &str) -> bool {
        let allowed: Vec<IpNet> = allowed.iter().map(|network| network.parse().unwrap()).collect();
        Networks::new(&allowed).permit(address.parse().unwrap())
    }

    // holds: SEC-20
    #[test]
    fn addresses_that_are_not_public_are_refused() {
        for address in [
            "127.0.0.1",
            "127.255.0.3",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.127.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2001::1",
            "2001:db8::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!permits(&[], address), "{address}");
        }
        for address in ["1.1.1.1", "100.128.0.1", "172.32.0.1", "198.20.0.1", "2606:4700::1111"] {
            assert!(permits(&[], address), "{address}");
        }
    }

    #[test]
    fn a_network_of_the_settings_is_permitted_and_no_other() {
        let allowed = ["127.0.0.0/8", "fd00::/8"];
        assert!(permits(&allowed, "127.0.0.1") && permits(&allowed, "::ffff:127.0.0.1"));
        assert!(permits(&allowed, "fd00::1"));
        assert!(!permits(&allowed, "10.0.0.1") && !permits(&allowed, "::1"));
    }
}

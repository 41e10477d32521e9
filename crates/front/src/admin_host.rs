//! The `Host` check of the listener for operators.
//!
//! It refuses a page of a browser whose host name was rebound to this machine's address: such a
//! page always sends a name. Probes and Prometheus send the address to which they connect, so an
//! IP address is accepted. A client that is no browser may leave `Host` out.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::origin::split_port;

/// The host names that requests of operators may carry, besides `localhost` and IP addresses.
#[derive(Clone, Debug)]
pub(crate) struct AdminHosts(Vec<String>);

impl AdminHosts {
    /// Allows these names, each with or without a port.
    pub(crate) fn new(allowed: &[String]) -> Self {
        Self(allowed.to_vec())
    }

    /// May a request carry this host?
    pub(crate) fn allows(&self, host: &str) -> bool {
        let Some((name, _)) = split_port(host) else { return false };
        is_ip(name)
            || name.eq_ignore_ascii_case("localhost")
            || self
                .0
                .iter()
                .any(|known| known.eq_ignore_ascii_case(name) || known.eq_ignore_ascii_case(host))
    }
}

fn is_ip(name: &str) -> bool {
    let bracketed = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match bracketed {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => name.parse::<Ipv4Addr>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_local_names_and_listed_names_are_allowed_and_no_other_name() {
        let hosts = AdminHosts::new(&["node1.example".to_owned(), "node2.example:9090".to_owned()]);
        for host in [
            "127.0.0.1:9090",
            "10.0.0.4",
            "10.0.0.4:9090",
            "[::1]:9090",
            "[fd00::4]",
            "localhost",
            "LOCALHOST:9090",
            "Node1.example",
            "node1.example:9090",
            "node2.example:9090",
        ] {
            assert!(hosts.allows(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9090",
            "node2.example",
            "node1.example.evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "localhost:evil",
            "127.1",
            "2130706433",
            "10.0.0.4@evil.example",
            "[::1",
            "",
        ] {
            assert!(!hosts.allows(host), "{host}");
        }
    }
}

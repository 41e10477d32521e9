//! What protects a connection, and which connections must be encrypted.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::tls::Trust;

/// What authenticates and protects the connections of a node.
pub struct Credentials {
    /// The shared secret of the cluster's nodes; may be empty with certificates.
    pub secret: String,
    /// The TLS configuration: certificates, or a key of this process.
    pub trust: Trust,
    /// Whether connections are encrypted also if both nodes announce addresses of loopback. With
    /// certificates every connection is encrypted.
    pub encrypts_loopback: bool,
    /// Whether peers may connect whose programs know only the handshake without encryption, and may
    /// be connected to.
    pub accepts_plain: bool,
}

/// Keying material that both ends of a TLS session export, and no other end can.
pub(crate) type Exporter = [u8; 32];

/// What protects an open connection before its handshake.
#[derive(Clone, Copy)]
pub(crate) enum Protection {
    /// Nothing: the bytes can be read and changed on the way.
    Plain,
    /// TLS with a key that nothing vouches for: the proofs must cover the exporter.
    Secret { exporter: Exporter },
    /// TLS with certificates that both ends have verified.
    Certificates { exporter: Exporter },
}

impl Protection {
    /// The keying material of the connection; `None` if it is not encrypted.
    pub(crate) fn exporter(&self) -> Option<&Exporter> {
        match self {
            Self::Plain => None,
            Self::Secret { exporter } | Self::Certificates { exporter } => Some(exporter),
        }
    }
}

impl Credentials {
    /// Whether a connection between nodes that announce these addresses must be encrypted. Both
    /// ends decide this by the same two addresses, which the proofs cover.
    pub(crate) fn must_encrypt(&self, own: &str, peer: &str) -> bool {
        let on_loopback = is_loopback(own) && is_loopback(peer);
        self.trust.has_certificates() || self.encrypts_loopback || !on_loopback
    }
}

/// Whether an address is on loopback: an IP address of it, or `localhost`, with a port.
fn is_loopback(address: &str) -> bool {
    if let Ok(address) = address.parse::<SocketAddr>() {
        return match address.ip() {
            IpAddr::V4(ip) => ip.is_loopback(),
            IpAddr::V6(ip) => {
                ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| Ipv4Addr::is_loopback(&ip))
            }
        };
    }
    address.rsplit_once(':').is_some_and(|(host, _)| host.eq_ignore_ascii_case("localhost"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_plain_only_if_both_nodes_announce_loopback() {
        let (near, far) = ("127.0.0.1:7070", "10.0.0.4:7070");
        let credentials = |encrypts_loopback| Credentials {
            secret: String::new(),
            trust: Trust::with_process_key().unwrap(),
            encrypts_loopback,
            accepts_plain: true,
        };
        for (own, peer, must) in [
            (near, "127.3.2.1:1", false),
            (near, "[::1]:7070", false),
            ("[::ffff:127.0.0.1]:7070", near, false),
            ("localhost:7070", near, false),
            (near, far, true),
            (far, near, true),
            (far, far, true),
            (near, "127.0.0.1.example.com:7070", true),
            (near, "localhost.example.com:7070", true),
            (near, "0.0.0.0:7070", true),
            (near, "", true),
            ("", near, true),
        ] {
            assert_eq!(credentials(false).must_encrypt(own, peer), must, "{own:?} {peer:?}");
            assert!(credentials(true).must_encrypt(own, peer));
        }
    }
}

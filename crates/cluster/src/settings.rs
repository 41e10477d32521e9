//! How this node meets the others.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ownership::validity::Timing;
use serde::{Deserialize, Serialize, Serializer};

use crate::Error;
use peering::{ADDRESS_BYTES_MAX, Limits, PING_MS_MAX, Tls, Trust};

/// Shortest secret that is accepted, in bytes.
const SECRET_BYTES_MIN: usize = 16;

/// A shorter secret is warned of, in bytes: a recorded handshake shows whether a guess is right.
const SECRET_BYTES_STRONG: usize = 32;

/// Settings of the cluster.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where peers connect; empty for a node on its own.
    pub listen: String,
    /// The address that this node announces to its peers; empty for `listen`. No two nodes may
    /// share one: a node that answers at an address is taken as proof that the former node at
    /// that address is dead.
    pub advertise: String,
    /// A secret that only the nodes of the cluster know: 32 random bytes or more. Below
    /// 32 bytes the node warns, below 16 it does not start. May be empty with mutual TLS. Peers
    /// prove to each other that they know it. It does not encrypt what they send: without mutual
    /// TLS keep the link in a private network.
    #[serde(serialize_with = "redacted")]
    pub secret: String,
    /// What mutual TLS takes; `None`: what peers say is not encrypted.
    #[serde(skip)]
    pub tls: Option<Tls>,
    /// This node's name, for people; empty for the address that peers are told.
    pub name: String,
    /// How long a lease lasts without renewal, in milliseconds. A node that vanishes
    /// with its machine keeps its sessions from others for so long.
    pub lease_ms: u64,
    /// How often the lease is renewed, in milliseconds.
    pub renew_ms: u64,
    /// How long before its lease ends a node stops acting, in milliseconds. Covers what
    /// the clocks of nodes and store may drift apart in a lease.
    pub margin_ms: u64,
    /// How long a peer has to accept a connection and prove itself, in milliseconds.
    pub connect_ms: u64,
    /// How often each peer is asked whether it is there, in milliseconds, at most 60,000.
    /// Peers learn it when they meet.
    pub ping_ms: u64,
    /// How much longer than that a peer may be silent before its link counts as broken, in
    /// milliseconds.
    pub pong_ms: u64,
    /// Calls under way from one node to another; more are not started.
    pub calls_max: usize,
    /// Calls that wait for the link to a peer, in bytes; more are not started.
    pub waiting_bytes_max: usize,
    /// Frames with replies under way in one call. While its caller takes none, it gets no
    /// more, and no other call waits for it. The caller's setting applies; nodes may differ.
    pub window: u32,
    /// Largest call or reply, in bytes. What is larger ends its request with an error that
    /// names this setting; it is not tried again. Messages of more than 64 KiB are sent in
    /// several frames, so that a large one holds up no other.
    pub message_bytes_max: usize,
    /// Locations of sessions that are kept to save lookups; the oldest go first.
    pub location_cache_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: String::new(),
            advertise: String::new(),
            secret: String::new(),
            tls: None,
            name: String::new(),
            lease_ms: 6_000,
            renew_ms: 1_000,
            margin_ms: 1_000,
            connect_ms: 1_000,
            ping_ms: 300,
            pong_ms: 600,
            calls_max: 10_000,
            waiting_bytes_max: 64 << 20,
            window: 32,
            message_bytes_max: 64 << 20,
            location_cache_max: 65_536,
        }
    }
}

/// The secret is not told.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("listen", &self.listen)
            .field("advertise", &self.advertise)
            .field("name", &self.name)
            .field("lease_ms", &self.lease_ms)
            .field("renew_ms", &self.renew_ms)
            .field("margin_ms", &self.margin_ms)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// The bounds of the calls between this node and one peer.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            calls: self.calls_max,
            waiting_bytes: self.waiting_bytes_max,
            message_bytes: self.message_bytes_max,
            window: self.window,
        }
    }

    /// Says what is wrong, if something is.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |text: &str| Err(Error::Settings(text.to_owned()));
        if self.renew_ms == 0 || self.window == 0 || self.calls_max == 0 {
            return wrong("cluster: renew_ms, window and calls_max must be above 0");
        }
        if self.margin_ms.saturating_add(self.renew_ms.saturating_mul(2)) > self.lease_ms {
            return wrong(
                "cluster: lease_ms must be at least margin_ms and twice renew_ms; raise it",
            );
        }
        if self.message_bytes_max > self.waiting_bytes_max {
            return wrong(
                "cluster: waiting_bytes_max must be at least message_bytes_max, or the largest \
                 call could never be sent; raise it",
            );
        }
        if self.advertise.len() > ADDRESS_BYTES_MAX {
            return wrong("cluster.advertise is longer than 300 bytes, which no address is");
        }
        if self.connect_ms == 0 || self.ping_ms == 0 || self.pong_ms == 0 {
            return wrong("cluster: connect_ms, ping_ms and pong_ms must be above 0");
        }
        if self.ping_ms > PING_MS_MAX {
            return wrong("cluster: ping_ms must be at most 60000; peers wait no longer");
        }
        if self.listen.is_empty() {
            return Ok(());
        }
        if let Some(tls) = &self.tls {
            Trust::of(tls)?;
        }
        let may_lack = self.tls.is_some() && self.secret.is_empty();
        if self.secret.len() < SECRET_BYTES_MIN && !may_lack {
            return wrong(
                "cluster.secret must have at least 16 bytes, the same on every node; \
                 set it, or write [cluster.tls], or leave cluster.listen empty",
            );
        }
        Ok(())
    }

    /// Can the secret be guessed from what is heard on the way?
    pub(crate) fn has_weak_secret(&self) -> bool {
        !self.listen.is_empty() && (1..SECRET_BYTES_STRONG).contains(&self.secret.len())
    }

    /// The address that peers are told, where the listener got `bound`.
    pub(crate) fn announced_address(&self, bound: SocketAddr) -> Result<String, Error> {
        if !self.advertise.is_empty() {
            return Ok(self.advertise.clone());
        }
        if IpAddr::is_unspecified(&bound.ip()) {
            return Err(Error::Settings(
                "cluster.listen is every address; say in cluster.advertise which one peers use"
                    .to_owned(),
            ));
        }
        Ok(bound.to_string())
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// How leases are kept.
    pub(crate) fn timing(&self) -> Timing {
        let Self { lease_ms, renew_ms, margin_ms, .. } = *self;
        Timing { lease_ms, renew_ms, margin_ms }
    }

    /// How long owners have to write their sessions anew after a failover of the store
    /// before another node may claim one of them.
    pub(crate) fn stabilisation(&self) -> Duration {
        let renewals = self.renew_ms.saturating_mul(2);
        Duration::from_millis(renewals.saturating_add(self.margin_ms))
    }

    pub(crate) fn connect(&self) -> Duration {
        Duration::from_millis(self.connect_ms)
    }
}

/// Settings may be shown; their secret may not.
fn redacted<S: Serializer>(secret: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if secret.is_empty() { "" } else { "***" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_secret_is_never_shown() {
        let settings = settings("secret = 'correct horse battery'");
        assert!(!format!("{settings:?}").contains("horse"));
        assert!(!toml::to_string(&settings).unwrap().contains("horse"));
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        settings("").check().unwrap();
        settings("listen = '127.0.0.1:0'\nsecret = '0123456789abcdef'").check().unwrap();
        for text in [
            "listen = '127.0.0.1:0'",
            "listen = '127.0.0.1:0'\nsecret = 'short'",
            "message_bytes_max = 2000\nwaiting_bytes_max = 1999",
            "lease_ms = 2000",
            "renew_ms = 0",
            "window = 0",
        ] {
            settings(text).check().unwrap_err();
        }
    }

    #[test]
    fn a_secret_of_fewer_than_32_bytes_is_weak_where_peers_connect() {
        for (listen, bytes, weak) in [
            ("127.0.0.1:0", 31, true),
            ("127.0.0.1:0", 32, false),
            // With certificates there may be none.
            ("127.0.0.1:0", 0, false),
            ("", 16, false),
        ] {
            let settings = Settings {
                listen: listen.into(),
                secret: "s".repeat(bytes),
                ..Settings::default()
            };
            assert_eq!(settings.has_weak_secret(), weak, "{listen:?} {bytes}");
        }
    }

    /// What an authority says of a node at 127.0.0.1.
    fn tls() -> Tls {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Tls { ca: certificate.clone(), certificate, key: key.serialize_pem() }
    }

    #[test]
    fn with_certificates_a_secret_may_be_left_out_and_may_not_be_short() {
        let mut settings = settings("listen = '127.0.0.1:0'");
        settings.tls = Some(tls());
        settings.check().unwrap();
        settings.secret = "short".into();
        settings.check().unwrap_err();
    }

    #[test]
    fn certificates_that_cannot_work_are_refused_by_name_and_no_key_is_shown() {
        let (whole, other) = (tls(), tls());
        let none = String::new;
        for (tls, named) in [
            (Tls { ca: none(), ..whole.clone() }, "ca_file"),
            (Tls { certificate: "junk".into(), ..whole.clone() }, "cert_file"),
            (Tls { key: none(), ..whole.clone() }, "key_file"),
            (Tls { key: other.key, ..whole.clone() }, "key_file"),
        ] {
            let mut settings = settings("listen = '127.0.0.1:0'");
            settings.tls = Some(tls);
            let said = settings.check().unwrap_err().to_string();
            assert!(said.contains(&format!("cluster.tls.{named}")), "{said}");
            assert!(!said.contains("PRIVATE") && !format!("{settings:?}").contains("PRIVATE"));
        }
        assert!(!format!("{whole:?}").contains("PRIVATE"));
    }

    #[test]
    fn peers_must_be_told_one_address() {
        let any = "0.0.0.0:7070".parse().unwrap();
        settings("").announced_address(any).unwrap_err();
        assert_eq!(settings("advertise = 'a:7070'").announced_address(any).unwrap(), "a:7070");
        let one = "10.0.0.4:7070".parse().unwrap();
        assert_eq!(settings("").announced_address(one).unwrap(), "10.0.0.4:7070");
    }
}

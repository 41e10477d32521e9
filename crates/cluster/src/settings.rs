//! The settings of a node's membership in a cluster.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ownership::validity::Timing;
use serde::{Deserialize, Serialize, Serializer};

use crate::Error;
use peering::{ADDRESS_BYTES_MAX, Credentials, Limits, PING_MS_MAX, Tls, Trust};

/// The shortest accepted secret, in bytes: an attacker that takes part in a handshake can test
/// guesses against it.
const SECRET_BYTES_MIN: usize = 32;

/// Which connections between nodes are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encrypt {
    /// All but those between two nodes that both announce an address of loopback.
    #[default]
    Auto,
    /// All.
    Always,
}

/// Settings of the cluster.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The address to listen on for peers; empty for a cluster of one.
    pub listen: String,
    /// The address that this node announces to its peers; empty for `listen`. Each node needs an
    /// address of its own: a node that answers at an address proves that the former node at that
    /// address is dead.
    pub advertise: String,
    /// The shared secret of the cluster's nodes: 32 random bytes or more. With a shorter one the
    /// node does not start. May be empty with mutual TLS. Peers prove to each other that they know
    /// it, and encrypt what they send.
    #[serde(serialize_with = "redacted")]
    pub secret: String,
    /// The secret before the present one, after it was changed; may be empty. What nodes wrote to the store
    /// with it is still read.
    #[serde(serialize_with = "redacted")]
    pub former_secret: String,
    /// Certificates and key for mutual TLS; `None`: the secret authenticates peers.
    #[serde(skip)]
    pub tls: Option<Tls>,
    /// Which connections between nodes are encrypted. Give all nodes the same value. With mutual
    /// TLS all are.
    pub encrypt: Encrypt,
    /// Whether nodes of a program that does not know encryption without certificates may be peers.
    /// For the upgrade from such a program only; goes with release 0.2.
    pub accept_plain: bool,
    /// This node's name for operators; empty for the announced address.
    pub name: String,
    /// How long a lease lasts without renewal, in milliseconds. If a node is lost together with its
    /// machine, other nodes can claim its sessions only after this time.
    pub lease_ms: u64,
    /// The interval between lease renewals, in milliseconds.
    pub renew_ms: u64,
    /// How long before the end of its lease a node stops acting, in milliseconds. Covers the drift
    /// between the clocks of the nodes and the store during a lease.
    pub margin_ms: u64,
    /// How long connecting to a peer and the handshake may take, in milliseconds.
    pub connect_ms: u64,
    /// The interval between pings to each peer, in milliseconds, at most 60,000. The handshake
    /// announces it to the peer.
    pub ping_ms: u64,
    /// How much longer than the ping interval a peer may be silent before its link counts as
    /// broken, in milliseconds.
    pub pong_ms: u64,
    /// The most calls in progress from one node to another; further calls are not started.
    pub calls_max: usize,
    /// The most bytes of calls that wait for the link to a peer; further calls are not started.
    pub waiting_bytes_max: usize,
    /// The most reply frames of one call that its caller has not taken. At this bound the call
    /// waits, and other calls do not. The caller's setting applies; nodes may differ.
    pub window: u32,
    /// The largest call or reply, in bytes. A larger one ends its request with an error that names
    /// this setting, and is not retried. Messages above 64 KiB are sent in several frames, so that
    /// other calls are sent in between.
    pub message_bytes_max: usize,
    /// The most session locations in the cache; the oldest are dropped first.
    pub location_cache_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: String::new(),
            advertise: String::new(),
            secret: String::new(),
            former_secret: String::new(),
            tls: None,
            encrypt: Encrypt::Auto,
            accept_plain: true,
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

/// Omits the secret.
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
    /// The bounds for calls between this node and one peer.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            calls: self.calls_max,
            waiting_bytes: self.waiting_bytes_max,
            message_bytes: self.message_bytes_max,
            window: self.window,
        }
    }

    /// Checks the settings. The error names the setting and the remedy.
    pub fn check(&self) -> Result<(), Error> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// Everything that is wrong with the settings. Each error names the setting and the remedy.
    pub fn problems(&self) -> Vec<Error> {
        let mut wrong = Vec::new();
        let mut add = |is_wrong: bool, text: String| {
            if is_wrong {
                wrong.push(Error::Settings(text));
            }
        };
        for (key, value) in [
            ("renew_ms", self.renew_ms),
            ("window", self.window.into()),
            ("calls_max", self.calls_max as u64),
            ("connect_ms", self.connect_ms),
            ("ping_ms", self.ping_ms),
            ("pong_ms", self.pong_ms),
        ] {
            add(value == 0, format!("`cluster.{key}` is 0; write at least 1"));
        }
        let lease_ms_min = self.margin_ms.saturating_add(self.renew_ms.saturating_mul(2));
        add(
            lease_ms_min > self.lease_ms,
            format!(
                "`cluster.lease_ms` is {} and must be at least `cluster.margin_ms` and twice \
                 `cluster.renew_ms`; write at least {lease_ms_min}",
                self.lease_ms
            ),
        );
        add(
            self.message_bytes_max > self.waiting_bytes_max,
            format!(
                "`cluster.waiting_bytes_max` is {} and must be at least \
                 `cluster.message_bytes_max`, or the largest call could never be sent; write at \
                 least {}",
                self.waiting_bytes_max, self.message_bytes_max
            ),
        );
        add(
            self.advertise.len() > ADDRESS_BYTES_MAX,
            "`cluster.advertise` is longer than 300 bytes, which no address is; shorten it".into(),
        );
        add(
            self.ping_ms > PING_MS_MAX,
            format!(
                "`cluster.ping_ms` is {}, longer than any peer waits; write at most {PING_MS_MAX}",
                self.ping_ms
            ),
        );
        if self.listen.is_empty() {
            return wrong;
        }
        let may_lack = self.tls.is_some() && self.secret.is_empty();
        let length = match self.secret.len() {
            0 => "is missing".to_owned(),
            bytes => format!("has {bytes} bytes"),
        };
        add(
            self.secret.len() < SECRET_BYTES_MIN && !may_lack,
            format!(
                "`cluster.secret` {length} and must have at least 32 bytes, the same on every node; \
                 make one with `openssl rand -hex 32`, and write it as `cluster.secret_file`, as \
                 the variable ROUNDHOUSE__CLUSTER__SECRET or as `cluster.secret`; or write \
                 [cluster.tls]; or leave `cluster.listen` out"
            ),
        );
        if let Some(Err(error)) = self.tls.as_ref().map(Trust::of) {
            wrong.push(error.into());
        }
        wrong
    }

    /// What authenticates and protects the links of this node.
    pub(crate) fn credentials(&self) -> Result<Credentials, Error> {
        let trust = match &self.tls {
            Some(tls) => Trust::of(tls)?,
            None => Trust::with_process_key()?,
        };
        Ok(Credentials {
            secret: self.secret.clone(),
            trust,
            encrypts_loopback: self.encrypt == Encrypt::Always,
            accepts_plain: self.accept_plain,
        })
    }

    /// The address to announce to peers; `bound` is the address of the listener.
    pub(crate) fn announced_address(&self, bound: SocketAddr) -> Result<String, Error> {
        if !self.advertise.is_empty() {
            return Ok(self.advertise.clone());
        }
        if IpAddr::is_unspecified(&bound.ip()) {
            return Err(Error::Settings(
                "`cluster.listen` is the wildcard address; set `cluster.advertise` to one for peers"
                    .to_owned(),
            ));
        }
        Ok(bound.to_string())
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// The timing of leases.
    pub(crate) fn timing(&self) -> Timing {
        let Self { lease_ms, renew_ms, margin_ms, .. } = *self;
        Timing { lease_ms, renew_ms, margin_ms }
    }

    /// How long owners have to write their sessions again after a failover of the store, before
    /// another node may claim one of them.
    pub(crate) fn stabilisation(&self) -> Duration {
        let renewals = self.renew_ms.saturating_mul(2);
        Duration::from_millis(renewals.saturating_add(self.margin_ms))
    }

    pub(crate) fn connect(&self) -> Duration {
        Duration::from_millis(self.connect_ms)
    }
}

/// Serialises a secret as asterisks, so that settings can be printed.
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
        settings("listen = '127.0.0.1:0'\nsecret = '0123456789abcdef0123456789abcdef'")
            .check()
            .unwrap();
        settings("encrypt = 'always'\naccept_plain = false").check().unwrap();
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
    fn a_secret_of_fewer_than_32_bytes_is_refused_where_peers_connect() {
        for (listen, bytes, is_refused) in [
            ("127.0.0.1:0", 0, true),
            ("127.0.0.1:0", 16, true),
            ("127.0.0.1:0", 31, true),
            ("127.0.0.1:0", 32, false),
            ("", 16, false),
        ] {
            let settings = Settings {
                listen: listen.into(),
                secret: "s".repeat(bytes),
                ..Settings::default()
            };
            let checked = settings.check().map_err(|error| error.to_string());
            assert_eq!(checked.is_err(), is_refused, "{listen:?} {bytes}");
            let Err(refused) = checked else { continue };
            let length =
                if bytes == 0 { "is missing".into() } else { format!("has {bytes} bytes") };
            assert!(refused.contains(&format!("`cluster.secret` {length}")), "{refused}");
            assert!(refused.contains("openssl rand") && !refused.contains("sss"), "{refused}");
        }
    }

    /// A certificate for a node at 127.0.0.1, with the certificate of its authority.
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
        settings.secret = "s".repeat(31);
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
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(&format!("cluster.tls.{named}")), "{error}");
            assert!(!error.contains("PRIVATE") && !format!("{settings:?}").contains("PRIVATE"));
        }
        assert!(!format!("{whole:?}").contains("PRIVATE"));
    }

    #[test]
    fn a_wildcard_listener_needs_an_address_to_announce() {
        let any = "0.0.0.0:7070".parse().unwrap();
        settings("").announced_address(any).unwrap_err();
        assert_eq!(settings("advertise = 'a:7070'").announced_address(any).unwrap(), "a:7070");
        let one = "10.0.0.4:7070".parse().unwrap();
        assert_eq!(settings("").announced_address(one).unwrap(), "10.0.0.4:7070");
    }
}

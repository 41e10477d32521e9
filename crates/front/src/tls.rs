//! TLS of the listener for clients.
//!
//! A certificate is chosen by the name that a client sends (SNI). Certificates can be replaced while the
//! node runs; established connections go on. A handshake is a part of the first read of a connection,
//! so everything that bounds a connection bounds its handshake too. This folder reads no file.

mod certificates;
mod pair;
mod permits;
mod settings;
mod stream;

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::NoServerSessionStorage;
use tokio::net::TcpStream;

pub use self::certificates::{CertificatePairs, DEFAULT_PAIR};
pub use self::pair::{CertificatePair, PairError};
pub use self::settings::{PairSettings, TlsSettings};
pub(crate) use self::stream::{HANDSHAKE, TlsStream};

use self::certificates::Certificates;
use self::permits::HandshakePermits;
use crate::client_address::AddressKey;

/// The one protocol that clients can negotiate: HTTP/2 has other bounds.
const ALPN: &[u8] = b"http/1.1";

/// The TLS of a listener. Clones share the certificates.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    certificates: Arc<Certificates>,
}

impl Tls {
    /// TLS 1.2 and 1.3 with these certificates.
    pub fn new(pairs: CertificatePairs) -> Result<Self, rustls::Error> {
        let certificates = Arc::new(Certificates::new(pairs));
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&certificates) as _);
        config.alpn_protocols = vec![ALPN.to_vec()];
        // A client that connects again with a ticket costs no signature. Its session is in the ticket,
        // not in the memory of the node.
        config.ticketer = ring::Ticketer::new()?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 1;
        Ok(Self { config: Arc::new(config), certificates })
    }

    /// Replaces the certificates. Established connections go on with the former ones.
    pub fn replace(&self, pairs: CertificatePairs) {
        self.certificates.replace(pairs);
    }
}

/// The TLS of one worker.
#[derive(Clone)]
pub(crate) struct WorkerTls {
    config: Arc<ServerConfig>,
    permits: HandshakePermits,
}

impl WorkerTls {
    pub(crate) fn new(tls: &Tls) -> Self {
        Self { config: Arc::clone(&tls.config), permits: HandshakePermits::default() }
    }

    /// A connection whose handshake is performed by its first reads.
    pub(crate) fn wrap(&self, stream: TcpStream, peer: Option<SocketAddr>) -> TlsStream {
        let client = peer.map(|peer| AddressKey::of_peer(peer.ip()));
        TlsStream::new(stream, Arc::clone(&self.config), self.permits.of(client))
    }
}

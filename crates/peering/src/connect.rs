//! Connects to a peer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::connection::Heartbeat;
use crate::established::Established;
use crate::handshake::{self, HandshakeError, PeerIdentity, Purpose};
use crate::inbox::Inbox;
use crate::protection::{Credentials, Protection};
use crate::socket::Socket;
use crate::versions::Versions;
use crate::wire::Wire;
use crate::{FRAME_BYTES_MAX, metrics};

/// The identity of this node in handshakes, and its credentials.
pub struct LocalNode {
    /// The incarnation of this process.
    pub incarnation: u64,
    /// The address at which peers reach it; empty if no peer connects to it.
    pub address: Arc<str>,
    /// The interval of its pings to peers that it calls, in milliseconds.
    pub ping_ms: u64,
    /// How much longer than the ping interval a peer may be silent, in milliseconds.
    pub pong_ms: u64,
    /// The payload versions that it reads.
    pub versions: Versions,
    /// What authenticates and protects its connections; `None`: the node has no peers.
    pub credentials: Option<Credentials>,
}

/// The reason why no connection was established.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing listens at the address.
    #[error("the connection was refused: no process listens at the address")]
    Refused,
    /// The peer reads no payload version that this node reads. The peer is there, and may know the
    /// secret.
    #[error(
        "it reads version {theirs} of what nodes send each other, this node {own}; replace the node \
         with the older program, as docs/deploying.md says under \"An upgrade that changes what nodes \
         send each other\""
    )]
    Incompatible {
        /// The versions that this node reads.
        own: Versions,
        /// The versions that the peer reads.
        theirs: Versions,
    },
    /// Any other reason; the text includes the remedy.
    #[error("{0}")]
    Other(String),
}

impl LocalNode {
    /// Connects to an address and authenticates the node there. The wait is unbounded: the caller
    /// must limit it.
    pub async fn connect(
        &self,
        address: &str,
        purpose: Purpose,
    ) -> Result<Established, ConnectError> {
        let Some(credentials) = &self.credentials else {
            return Err(ConnectError::Other("this node has no peers".to_owned()));
        };
        let (mut wire, protection) =
            self.reach(address, credentials).await.map_err(connect_failed)?;
        let mut inbox = Inbox::new(handshake::FRAME_BYTES_MAX);
        let own = self.identity(self.ping_ms, purpose);
        let peer = handshake::call(&own, credentials, &protection, &mut wire, &mut inbox)
            .await
            .map_err(|error| self.handshake_failed(credentials, error))?;
        self.warn_of_plain(credentials, &protection, &peer, purpose);
        inbox.admit(FRAME_BYTES_MAX);
        Ok(Established::new(peer, wire, inbox, self.heartbeat(self.ping_ms, true)))
    }

    /// Logs a peer whose program has connected without encryption although the connection leaves
    /// the machine.
    pub(crate) fn warn_of_plain(
        &self,
        credentials: &Credentials,
        protection: &Protection,
        peer: &PeerIdentity,
        purpose: Purpose,
    ) {
        let is_plain = matches!(protection, Protection::Plain);
        let must_encrypt = credentials.must_encrypt(&self.address, &peer.address);
        if is_plain && must_encrypt && purpose == Purpose::Calls {
            tracing::warn!(
                address = %peer.address,
                incarnation = format_args!("{:016x}", peer.incarnation),
                "a peer link is not encrypted: the peer runs an older program; replace it, and then \
                 set cluster.accept_plain = false"
            );
        }
    }

    pub(crate) fn identity(&self, ping_ms: u64, purpose: Purpose) -> PeerIdentity {
        let address = self.address.clone();
        PeerIdentity {
            incarnation: self.incarnation,
            ping_ms,
            address,
            purpose,
            versions: self.versions,
        }
    }

    /// The heartbeat of a connection on which the calling end sends a ping every `every_ms`;
    /// `pings`: this node is the calling end.
    pub(crate) fn heartbeat(&self, every_ms: u64, pings: bool) -> Heartbeat {
        let silence_ms = self.ping_ms.max(every_ms).saturating_add(self.pong_ms);
        let (every, silence) = (Duration::from_millis(every_ms), Duration::from_millis(silence_ms));
        Heartbeat { every, pings, silence }
    }

    /// Opens a connection, encrypted if it must be. An older program ends the connection at the
    /// first bytes of TLS; then this connects once more without encryption, if that is accepted. An
    /// attacker can cause this as well. The handshake then detects it by the peer's greeting.
    async fn reach(
        &self,
        address: &str,
        credentials: &Credentials,
    ) -> io::Result<(Wire, Protection)> {
        let Credentials { trust, accepts_plain, .. } = credentials;
        if credentials.must_encrypt(&self.address, address) {
            let socket = Socket::new(TcpStream::connect(address).await?)?;
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            match trust.connect(host, socket).await {
                Err(error) if *accepts_plain && !trust.has_certificates() && is_end(&error) => {
                    tracing::debug!(address, %error, "TLS with a peer failed; connecting without");
                }
                connected => return connected,
            }
        }
        let socket = Socket::new(TcpStream::connect(address).await?)?;
        Ok((Wire::Plain(socket), Protection::Plain))
    }

    fn handshake_failed(&self, credentials: &Credentials, error: HandshakeError) -> ConnectError {
        let why = match error {
            HandshakeError::Ended(error) => {
                return connect_failed(credentials.trust.explain_early_end(error));
            }
            HandshakeError::Incompatible(theirs) => {
                return ConnectError::Incompatible { own: self.versions, theirs };
            }
            HandshakeError::Malformed => "the other end is not a node of a cluster",
            HandshakeError::TooOld => {
                "the peer's program does not encrypt its links, and cluster.accept_plain is off; \
                 replace the program"
            }
            HandshakeError::Downgraded => {
                metrics::LINKS_REFUSED.inc();
                "the peer knows encrypted links, but TLS with it failed; give all nodes the same \
                 cluster.encrypt, and see what is between the two nodes"
            }
            HandshakeError::Random => "the operating system returned no random bytes",
            HandshakeError::Unproven => {
                metrics::LINKS_REFUSED.inc();
                "the peer does not know cluster.secret; give all nodes the same one"
            }
            HandshakeError::Refused => {
                metrics::LINKS_REFUSED.inc();
                "the peer refused this node's proof; give all nodes the same cluster.secret"
            }
        };
        ConnectError::Other(why.to_owned())
    }
}

/// Whether the connection ended, and TLS reported nothing.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn connect_failed(error: io::Error) -> ConnectError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ConnectError::Refused,
        io::ErrorKind::PermissionDenied => {
            metrics::LINKS_REFUSED.inc();
            ConnectError::Other(error.to_string())
        }
        _ => ConnectError::Other(error.to_string()),
    }
}

//! Connects to a peer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::connection::Heartbeat;
use crate::established::Established;
use crate::handshake::{self, PeerIdentity, Purpose, Unmet};
use crate::inbox::Inbox;
use crate::tls::{self, Trust};
use crate::versions::Versions;
use crate::wire::{Socket, Wire};
use crate::{FRAME_BYTES_MAX, metrics};

/// This node, as its peers see it, and what it proves itself with.
pub struct LocalNode {
    /// This process. A restarted node is another one.
    pub incarnation: u64,
    /// Where peers reach it; empty where none does.
    pub address: Arc<str>,
    /// How often it pings those that it calls, in milliseconds.
    pub ping_ms: u64,
    /// How much longer than between two pings a peer may be silent, in milliseconds.
    pub pong_ms: u64,
    /// The versions of payloads that it reads.
    pub versions: Versions,
    /// What only nodes of this cluster know.
    pub secret: String,
    /// Where connections are encrypted.
    pub trust: Option<Trust>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing listens at the address.
    #[error("nothing listens there")]
    Refused,
    /// The peer reads no version of payloads that this node reads. It is there, and may well know
    /// the secret.
    #[error(
        "it reads version {theirs} of what nodes send each other, this node {own}; replace the node \
         with the older program, as docs/deploying.md says under \"An upgrade that changes what nodes \
         send each other\""
    )]
    Incompatible {
        /// What this node reads.
        own: Versions,
        /// What the peer reads.
        theirs: Versions,
    },
    /// Anything else; the text says what, and what to do.
    #[error("{0}")]
    Other(String),
}

impl LocalNode {
    /// Connects to an address, and finds out which node is there. Waits for as long as the peer
    /// takes: the caller bounds it.
    pub async fn connect(
        &self,
        address: &str,
        purpose: Purpose,
    ) -> Result<Established, ConnectError> {
        let mut wire = self.reach(address).await.map_err(unreached)?;
        let mut inbox = Inbox::new(handshake::FRAME_BYTES_MAX);
        let peer = handshake::call(
            &self.identity(self.ping_ms, purpose),
            &self.secret,
            &mut wire,
            &mut inbox,
        )
        .await
        .map_err(|error| self.unmet(error))?;
        inbox.admit(FRAME_BYTES_MAX);
        Ok(Established::new(peer, wire, inbox, self.heartbeat(self.ping_ms, true)))
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

    /// Of a connection over which one end sends something each `every_ms`; `pings`: this end.
    pub(crate) fn heartbeat(&self, every_ms: u64, pings: bool) -> Heartbeat {
        let silence_ms = self.ping_ms.max(every_ms).saturating_add(self.pong_ms);
        let (every, silence) = (Duration::from_millis(every_ms), Duration::from_millis(silence_ms));
        Heartbeat { every, pings, silence }
    }

    async fn reach(&self, address: &str) -> io::Result<Wire> {
        let socket = Socket::new(TcpStream::connect(address).await?)?;
        let Some(trust) = &self.trust else { return Ok(Wire::Plain(socket)) };
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        Ok(Wire::Tls(Box::new(tls::meet(&trust.connector(), host, socket).await?)))
    }

    fn unmet(&self, unmet: Unmet) -> ConnectError {
        let why = match unmet {
            Unmet::Ended(error) => return unreached(tls::unheard(error)),
            Unmet::Incompatible(theirs) => {
                return ConnectError::Incompatible { own: self.versions, theirs };
            }
            Unmet::Malformed => "what answers there is not a peer",
            Unmet::Random => "the system has no random bits",
            Unmet::Unproven => {
                metrics::LINKS_REFUSED.inc();
                "it does not know the cluster's secret"
            }
            Unmet::Refused => {
                metrics::LINKS_REFUSED.inc();
                "it does not accept this node; give all nodes the same cluster.secret"
            }
        };
        ConnectError::Other(why.to_owned())
    }
}

fn unreached(error: io::Error) -> ConnectError {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ConnectError::Refused,
        io::ErrorKind::PermissionDenied => {
            metrics::LINKS_REFUSED.inc();
            ConnectError::Other(error.to_string())
        }
        _ => ConnectError::Other(error.to_string()),
    }
}

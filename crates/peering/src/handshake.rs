//! The handshake of a connection between two nodes: each proves that it knows the cluster's secret,
//! and announces its incarnation.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt as _;

use crate::frame::{Bye, Greeting, Kind};
use crate::inbox::{Inbox, Malformed};
use crate::proof::{self, Role};
use crate::versions::Versions;
use crate::wire::Wire;

/// The longest frame during the handshake, in bytes: a greeting takes up to 58, and an address up
/// to [`ADDRESS_BYTES_MAX`].
pub(crate) const FRAME_BYTES_MAX: usize = 512;

/// The longest address of a node, in bytes. Settings with a longer one are rejected. The longest
/// host name has 253 bytes.
pub const ADDRESS_BYTES_MAX: usize = 300;

/// The node at one end of a connection, as it describes itself.
#[derive(Clone)]
pub struct PeerIdentity {
    /// The incarnation of its process.
    pub incarnation: u64,
    /// The announced interval of the calling end's pings, in milliseconds; 0 at the called end.
    pub ping_ms: u64,
    /// The address at which peers reach it; empty if no peer connects to it.
    pub address: Arc<str>,
    /// The purpose of the connection, which the calling end chooses.
    pub purpose: Purpose,
    /// The payload versions that it reads.
    pub versions: Versions,
}

/// The purpose of a connection between two nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// The connection carries calls.
    #[default]
    Calls,
    /// The connection carries no calls: the caller waits for its end.
    Watch,
}

/// The reason why a handshake failed.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The other end sent bytes that no node sends.
    Malformed,
    /// The other end reads only these payload versions, of which this node reads none.
    Incompatible(Versions),
    /// The other end does not know the cluster's secret.
    Unproven,
    /// The other end rejected this node's proof.
    Refused,
    /// The connection ended.
    Ended(io::Error),
    /// The operating system returned no random bytes.
    Random,
}

/// Performs the handshake of the calling end. Returns the node at the called end.
pub(crate) async fn call(
    own: &PeerIdentity,
    secret: &str,
    wire: &mut Wire,
    inbox: &mut Inbox,
) -> Result<PeerIdentity, HandshakeError> {
    let caller = greeting(own)?;
    send(wire, Kind::Hello(caller.clone())).await?;
    let callee = match receive(wire, inbox).await? {
        Kind::Challenge(callee) => callee,
        _ => return Err(HandshakeError::Malformed),
    };
    // Checked before the proof, whose format may differ as well.
    let versions = Versions::of(&callee);
    if own.versions.common(versions).is_none() {
        return Err(HandshakeError::Incompatible(versions));
    }
    send(wire, Kind::Proof(proof::prove(secret, Role::Caller, &caller, &callee))).await?;
    match receive(wire, inbox).await? {
        Kind::Welcome(proof) if proof::holds(&proof, secret, Role::Callee, &caller, &callee) => {
            // The identity is used only after the peer has proven itself.
            Ok(PeerIdentity::new(callee, versions))
        }
        Kind::Welcome(_) => Err(HandshakeError::Unproven),
        Kind::Bye(Bye { unproven: true }) => Err(HandshakeError::Refused),
        _ => Err(HandshakeError::Malformed),
    }
}

/// Performs the handshake of the called end. Returns the node at the calling end.
pub(crate) async fn answer(
    own: &PeerIdentity,
    secret: &str,
    wire: &mut Wire,
    inbox: &mut Inbox,
) -> Result<PeerIdentity, HandshakeError> {
    let Kind::Hello(caller) = receive(wire, inbox).await? else {
        return Err(HandshakeError::Malformed);
    };
    let callee = greeting(own)?;
    send(wire, Kind::Challenge(callee.clone())).await?;
    let versions = Versions::of(&caller);
    if own.versions.common(versions).is_none() {
        // The caller has received the versions of this node and closes the connection itself.
        let _ = receive(wire, inbox).await;
        return Err(HandshakeError::Incompatible(versions));
    }
    let Kind::Proof(proof) = receive(wire, inbox).await? else {
        return Err(HandshakeError::Malformed);
    };
    if !proof::holds(&proof, secret, Role::Caller, &caller, &callee) {
        send(wire, Kind::Bye(Bye { unproven: true })).await?;
        return Err(HandshakeError::Unproven);
    }
    send(wire, Kind::Welcome(proof::prove(secret, Role::Callee, &caller, &callee))).await?;
    Ok(PeerIdentity::new(caller, versions))
}

/// The greeting of this node, with a nonce.
fn greeting(own: &PeerIdentity) -> Result<Greeting, HandshakeError> {
    let mut nonce = [0; proof::NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|_| HandshakeError::Random)?;
    Ok(Greeting {
        incarnation: own.incarnation,
        nonce: Bytes::copy_from_slice(&nonce),
        ping_ms: own.ping_ms,
        address: own.address.to_string(),
        watches: own.purpose == Purpose::Watch,
        oldest_version: own.versions.oldest,
        newest_version: own.versions.newest,
    })
}

impl PeerIdentity {
    fn new(greeting: Greeting, versions: Versions) -> Self {
        let Greeting { incarnation, ping_ms, address, watches, .. } = greeting;
        let purpose = if watches { Purpose::Watch } else { Purpose::Calls };
        Self { incarnation, ping_ms, address: address.into(), purpose, versions }
    }
}

async fn send(wire: &mut Wire, kind: Kind) -> Result<(), HandshakeError> {
    let mut bytes = BytesMut::new();
    kind.write_to(&mut bytes);
    wire.write_all(&bytes).await?;
    Ok(wire.flush().await?)
}

async fn receive(wire: &mut Wire, inbox: &mut Inbox) -> Result<Kind, HandshakeError> {
    loop {
        if let Some(frame) = inbox.next()? {
            return frame.kind.ok_or(HandshakeError::Malformed);
        }
        if poll_fn(|context| inbox.poll_fill(wire, context)).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Ended(error)
    }
}

impl From<Malformed> for HandshakeError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

//! The handshake of a connection between two nodes: each proves that it knows the cluster's secret,
//! and announces its incarnation. It decides whether a connection without encryption may go on.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;

use crate::frame::{Bye, Greeting, Kind};
use crate::inbox::{Inbox, Malformed};
use crate::proof::{self, Role, Transcript};
use crate::protection::{Credentials, Protection};
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
    /// The program at the other end knows no encryption, and [`Credentials::accepts_plain`] is not
    /// set.
    TooOld,
    /// Both programs know encryption, and this connection has none.
    Downgraded,
    /// The connection ended.
    Ended(io::Error),
    /// The operating system returned no random bytes.
    Random,
}

/// Performs the handshake of the calling end. Returns the node at the called end.
pub(crate) async fn call(
    own: &PeerIdentity,
    credentials: &Credentials,
    protection: &Protection,
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
    check_protection(own, credentials, protection, &callee)?;
    let transcript = Transcript { caller: &caller, callee: &callee, protection };
    let secret = &credentials.secret;
    send(wire, Kind::Proof(transcript.prove(secret, Role::Caller))).await?;
    match receive(wire, inbox).await? {
        Kind::Welcome(proof) if transcript.holds(&proof, secret, Role::Callee) => {
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
    credentials: &Credentials,
    protection: &Protection,
    wire: &mut Wire,
    inbox: &mut Inbox,
) -> Result<PeerIdentity, HandshakeError> {
    let Kind::Hello(caller) = receive(wire, inbox).await? else {
        return Err(HandshakeError::Malformed);
    };
    let callee = greeting(own)?;
    // The mark in this greeting shows the caller that this program knows encryption.
    send(wire, Kind::Challenge(callee.clone())).await?;
    let versions = Versions::of(&caller);
    if own.versions.common(versions).is_none() {
        return Err(HandshakeError::Incompatible(versions));
    }
    check_protection(own, credentials, protection, &caller)?;
    let Kind::Proof(proof) = receive(wire, inbox).await? else {
        return Err(HandshakeError::Malformed);
    };
    let transcript = Transcript { caller: &caller, callee: &callee, protection };
    let secret = &credentials.secret;
    if !transcript.holds(&proof, secret, Role::Caller) {
        send(wire, Kind::Bye(Bye { unproven: true })).await?;
        return Err(HandshakeError::Unproven);
    }
    send(wire, Kind::Welcome(transcript.prove(secret, Role::Callee))).await?;
    Ok(PeerIdentity::new(caller, versions))
}

/// Whether a proof over this connection, with this other end, is enough. A changed greeting passes
/// at most this check: the proofs cover it.
fn check_protection(
    own: &PeerIdentity,
    credentials: &Credentials,
    protection: &Protection,
    other: &Greeting,
) -> Result<(), HandshakeError> {
    let knows_tls = proof::knows_tls(other);
    match protection {
        Protection::Certificates { .. } => Ok(()),
        // Without the mark the proof would not cover the TLS session.
        Protection::Secret { .. } if knows_tls => Ok(()),
        Protection::Secret { .. } => Err(HandshakeError::Malformed),
        Protection::Plain if !credentials.must_encrypt(&own.address, &other.address) => Ok(()),
        Protection::Plain if knows_tls => Err(HandshakeError::Downgraded),
        Protection::Plain if credentials.accepts_plain => Ok(()),
        Protection::Plain => Err(HandshakeError::TooOld),
    }
}

/// The greeting of this node, with a nonce.
fn greeting(own: &PeerIdentity) -> Result<Greeting, HandshakeError> {
    Ok(Greeting {
        incarnation: own.incarnation,
        nonce: proof::new_nonce().map_err(|_| HandshakeError::Random)?,
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

#[cfg(test)]
mod tests;

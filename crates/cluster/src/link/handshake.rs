//! How two nodes come to know each other, before anything is called.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt as _;

use super::frame::{Bye, Greeting, Kind};
use super::inbox::{Inbox, Malformed};
use super::proof::{self, Role};
use super::wire::Wire;
use crate::Incarnation;

/// Longest frame of those who have not proven themselves, in bytes: a greeting takes up to 46,
/// and an address up to [`ADDRESS_BYTES_MAX`].
pub(crate) const FRAME_BYTES_MAX: usize = 512;

/// Longest address that a node may be told to be at, in bytes. Settings with a longer one are
/// refused. The longest name of a host has 253.
pub(crate) const ADDRESS_BYTES_MAX: usize = 300;

/// Who is at one end of a connection.
#[derive(Clone)]
pub(crate) struct PeerIdentity {
    pub(crate) incarnation: Incarnation,
    /// Who calls says something so often, in milliseconds. It is 0 for who was called.
    pub(crate) ping_ms: u64,
    /// Where peers are told to reach it; empty where none does.
    pub(crate) address: Arc<str>,
    /// What the connection is for. Who was called leaves that to the caller.
    pub(crate) purpose: Purpose,
}

/// What a connection between two nodes is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It carries calls.
    #[default]
    Calls,
    /// It carries nothing: the caller waits for its end.
    Watch,
}

/// Why two do not come to know each other.
#[derive(Debug)]
pub(crate) enum Unmet {
    /// The other end speaks as no node does.
    Malformed,
    /// The other end does not know the cluster's secret.
    Unproven,
    /// The other end says that this node does not know it.
    Refused,
    /// The connection ended.
    Ended(io::Error),
    /// There are no random bits.
    Random,
}

/// Meets the node that was called, and tells which it is.
pub(crate) async fn call(
    own: &PeerIdentity,
    secret: &str,
    wire: &mut Wire,
    inbox: &mut Inbox,
) -> Result<PeerIdentity, Unmet> {
    let caller = greeting(own)?;
    say(wire, Kind::Hello(caller.clone())).await?;
    let callee = match hear(wire, inbox).await? {
        Kind::Challenge(callee) => callee,
        _ => return Err(Unmet::Malformed),
    };
    say(wire, Kind::Proof(proof::prove(secret, Role::Caller, &caller, &callee))).await?;
    match hear(wire, inbox).await? {
        Kind::Welcome(proof) if proof::holds(&proof, secret, Role::Callee, &caller, &callee) => {
            // Only one that proved itself is believed.
            Ok(callee.into())
        }
        Kind::Welcome(_) => Err(Unmet::Unproven),
        Kind::Bye(Bye { unproven: true }) => Err(Unmet::Refused),
        _ => Err(Unmet::Malformed),
    }
}

/// Meets the node that called, and tells which it is.
pub(crate) async fn answer(
    own: &PeerIdentity,
    secret: &str,
    wire: &mut Wire,
    inbox: &mut Inbox,
) -> Result<PeerIdentity, Unmet> {
    let Kind::Hello(caller) = hear(wire, inbox).await? else { return Err(Unmet::Malformed) };
    let callee = greeting(own)?;
    say(wire, Kind::Challenge(callee.clone())).await?;
    let Kind::Proof(proof) = hear(wire, inbox).await? else { return Err(Unmet::Malformed) };
    if !proof::holds(&proof, secret, Role::Caller, &caller, &callee) {
        say(wire, Kind::Bye(Bye { unproven: true })).await?;
        return Err(Unmet::Unproven);
    }
    say(wire, Kind::Welcome(proof::prove(secret, Role::Callee, &caller, &callee))).await?;
    Ok(caller.into())
}

/// Who this is, and something that nobody ever said before.
fn greeting(own: &PeerIdentity) -> Result<Greeting, Unmet> {
    let mut nonce = [0; proof::NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|_| Unmet::Random)?;
    Ok(Greeting {
        incarnation: own.incarnation.0,
        nonce: Bytes::copy_from_slice(&nonce),
        ping_ms: own.ping_ms,
        address: own.address.to_string(),
        watches: own.purpose == Purpose::Watch,
    })
}

impl From<Greeting> for PeerIdentity {
    fn from(greeting: Greeting) -> Self {
        let Greeting { incarnation, ping_ms, address, watches, .. } = greeting;
        let incarnation = Incarnation(incarnation);
        let purpose = if watches { Purpose::Watch } else { Purpose::Calls };
        Self { incarnation, ping_ms, address: address.into(), purpose }
    }
}

async fn say(wire: &mut Wire, kind: Kind) -> Result<(), Unmet> {
    let mut bytes = BytesMut::new();
    kind.write_to(&mut bytes);
    wire.write_all(&bytes).await?;
    Ok(wire.flush().await?)
}

async fn hear(wire: &mut Wire, inbox: &mut Inbox) -> Result<Kind, Unmet> {
    loop {
        if let Some(frame) = inbox.next()? {
            return frame.kind.ok_or(Unmet::Malformed);
        }
        if poll_fn(|context| inbox.poll_fill(wire, context)).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
    }
}

impl From<io::Error> for Unmet {
    fn from(error: io::Error) -> Self {
        Self::Ended(error)
    }
}

impl From<Malformed> for Unmet {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

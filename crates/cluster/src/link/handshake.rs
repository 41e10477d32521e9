//! How two nodes come to know each other, before anything is called.

use std::future::poll_fn;
use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt as _;

use super::frame::{Bye, Greeting, Kind};
use super::inbox::{Inbox, Strange};
use super::proof::{self, Role};
use super::wire::Wire;
use crate::Incarnation;

/// Longest frame of those who have not proven themselves, in bytes: a greeting takes up to 38.
pub(crate) const FRAME_BYTES_MAX: usize = 256;

/// Who called.
pub(crate) struct Caller {
    pub(crate) incarnation: Incarnation,
    /// It says something so often, in milliseconds.
    pub(crate) ping_ms: u64,
}

/// Why two do not come to know each other.
#[derive(Debug)]
pub(crate) enum Unmet {
    /// The other end speaks as no node does.
    Strange,
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
    own: Caller,
    secret: &str,
    wire: &mut Wire,
    inbox: &mut Inbox,
) -> Result<Incarnation, Unmet> {
    let caller = Greeting { ping_ms: own.ping_ms, ..greeting(own.incarnation)? };
    say(wire, Kind::Hello(caller.clone())).await?;
    let callee = match hear(wire, inbox).await? {
        Kind::Challenge(callee) => callee,
        _ => return Err(Unmet::Strange),
    };
    say(wire, Kind::Proof(proof::prove(secret, Role::Caller, &caller, &callee))).await?;
    match hear(wire, inbox).await? {
        Kind::Welcome(proof) if proof::holds(&proof, secret, Role::Callee, &caller, &callee) => {
            // Only one that proved itself is believed.
            Ok(Incarnation(callee.incarnation))
        }
        Kind::Welcome(_) => Err(Unmet::Unproven),
        Kind::Bye(Bye { unproven: true }) => Err(Unmet::Refused),
        _ => Err(Unmet::Strange),
    }
}

/// Meets the node that called, and tells which it is.
pub(crate) async fn answer(
    own: Incarnation,
    secret: &str,
    wire: &mut Wire,
    inbox: &mut Inbox,
) -> Result<Caller, Unmet> {
    let Kind::Hello(caller) = hear(wire, inbox).await? else { return Err(Unmet::Strange) };
    let callee = greeting(own)?;
    say(wire, Kind::Challenge(callee.clone())).await?;
    let Kind::Proof(proof) = hear(wire, inbox).await? else { return Err(Unmet::Strange) };
    if !proof::holds(&proof, secret, Role::Caller, &caller, &callee) {
        say(wire, Kind::Bye(Bye { unproven: true })).await?;
        return Err(Unmet::Unproven);
    }
    say(wire, Kind::Welcome(proof::prove(secret, Role::Callee, &caller, &callee))).await?;
    Ok(Caller { incarnation: Incarnation(caller.incarnation), ping_ms: caller.ping_ms })
}

/// Who this is, and something that nobody ever said before.
fn greeting(own: Incarnation) -> Result<Greeting, Unmet> {
    let mut nonce = [0; proof::NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|_| Unmet::Random)?;
    Ok(Greeting { incarnation: own.0, nonce: Bytes::copy_from_slice(&nonce), ping_ms: 0 })
}

async fn say(wire: &mut Wire, kind: Kind) -> Result<(), Unmet> {
    let mut bytes = BytesMut::new();
    kind.say(&mut bytes);
    wire.write_all(&bytes).await?;
    Ok(wire.flush().await?)
}

async fn hear(wire: &mut Wire, inbox: &mut Inbox) -> Result<Kind, Unmet> {
    loop {
        if let Some(frame) = inbox.next()? {
            return frame.kind.ok_or(Unmet::Strange);
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

impl From<Strange> for Unmet {
    fn from(_: Strange) -> Self {
        Self::Strange
    }
}

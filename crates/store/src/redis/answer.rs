//! What Redis answered, and what that means.

use std::io;

use redis::{ServerError, Value};

use super::address::Address;
use super::layout;
use crate::{Error, Incarnation};

/// The bytes of an answer, if it is some.
pub(super) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

/// The text of an answer, if it is one.
pub(super) fn text(value: &Value) -> Option<&str> {
    std::str::from_utf8(bytes(value)?).ok()
}

/// Redis answered what no script of this version answers.
pub(super) fn nonsense() -> Error {
    unavailable("redis holds or answered what this version does not understand")
}

pub(super) fn unavailable(why: impl Into<String>) -> Error {
    Error::Unavailable(io::Error::other(why.into()))
}

/// Redis answered that it will not, or must not be asked.
pub(super) fn refused(why: impl Into<String>) -> Error {
    Error::Unavailable(io::Error::new(io::ErrorKind::PermissionDenied, why.into()))
}

/// What a script answered: its first word says how it went, and the rest is handed on
/// where it went well.
pub(super) fn outcome(value: Value) -> Result<Vec<Value>, Error> {
    let Value::Array(mut words) = value else { return Err(nonsense()) };
    let Some(Value::Int(code)) = words.first() else { return Err(nonsense()) };
    let incarnation = |value: Option<&Value>| {
        let bytes = value.and_then(bytes)?.try_into().ok()?;
        Some(Incarnation(u64::from_be_bytes(bytes)))
    };
    Err(match code {
        0 => {
            words.remove(0);
            return Ok(words);
        }
        1 => Error::Missing,
        2 => {
            let owner = words.get(1).and_then(bytes).and_then(layout::decode_owner);
            owner.map_or_else(nonsense, Error::Fenced)
        }
        3 => Error::Released,
        4 => Error::Ended,
        5 => match words.get(1) {
            Some(Value::Int(last)) => Error::Hole { last: u64::try_from(*last).ok() },
            _ => Error::Hole { last: None },
        },
        6 => incarnation(words.get(1)).map_or_else(nonsense, |by| Error::MarkedDead { by }),
        7 => Error::LeaseGone,
        _ => nonsense(),
    })
}

/// What an error of the server asks for. All of them but [`Verdict::Refused`] mean that
/// nothing was done.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Load the scripts and send it again.
    Load,
    /// The slot is there now.
    Moved(Address),
    /// This once, ask there.
    Ask(Address),
    /// Send it again after a while.
    Wait,
    /// Send it again after a while, on a new connection.
    Reconnect,
    /// It will not be done.
    Refused(String),
}

/// `from` is who said it.
pub(super) fn verdict(error: &ServerError, from: &Address) -> Verdict {
    let code = error.code();
    match code {
        "NOSCRIPT" => Verdict::Load,
        "MOVED" | "ASK" => match error.details().and_then(|details| redirection(details, from)) {
            Some(address) if code == "MOVED" => Verdict::Moved(address),
            Some(address) => Verdict::Ask(address),
            None => Verdict::Wait,
        },
        "TRYAGAIN" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "BUSY" => Verdict::Wait,
        "READONLY" => Verdict::Reconnect,
        // Its text may quote what was sent.
        "ERR" => Verdict::Refused(format!("{from} refused with an error")),
        _ => Verdict::Refused(format!("{from} refused: {code} {}", error.details().unwrap_or(""))),
    }
}

/// Reads `<slot> <host>:<port>`. Without a host, it is the one who said it.
fn redirection(details: &str, from: &Address) -> Option<Address> {
    let place = details.split_whitespace().nth(1)?;
    match place.strip_prefix(':') {
        Some(port) => Some(Address { host: from.host.clone(), port: port.parse().ok()? }),
        None => {
            // An IPv6 address comes without brackets.
            let (host, port) = place.rsplit_once(':')?;
            Some(Address { host: host.into(), port: port.parse().ok()? })
        }
    }
}

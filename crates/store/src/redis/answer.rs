//! Interprets the answers of Redis.

use std::io;

use redis::{ServerError, Value};

use super::address::Address;
use super::layout;
use crate::{Error, Incarnation};

/// The bytes of an answer, if it is a string.
pub(super) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

/// The text of an answer, if it is a string in UTF-8.
pub(super) fn text(value: &Value) -> Option<&str> {
    std::str::from_utf8(bytes(value)?).ok()
}

/// The error for an answer or a stored value that this version cannot decode.
pub(super) fn undecodable() -> Error {
    unavailable("cannot decode an answer or a stored value of redis: another version wrote it")
}

pub(super) fn unavailable(why: impl Into<String>) -> Error {
    Error::Unavailable(io::Error::other(why.into()))
}

/// The error for a command that Redis refused, or that must not be sent to it.
pub(super) fn refused(why: impl Into<String>) -> Error {
    Error::Unavailable(io::Error::new(io::ErrorKind::PermissionDenied, why.into()))
}

/// The result of a script. The first word of the answer is a status code; the rest is returned
/// if the code is zero.
pub(super) fn script_result(value: Value) -> Result<Vec<Value>, Error> {
    let Value::Array(mut words) = value else { return Err(undecodable()) };
    let Some(Value::Int(code)) = words.first() else { return Err(undecodable()) };
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
            owner.map_or_else(undecodable, Error::Fenced)
        }
        3 => Error::Released,
        4 => Error::Ended,
        5 => match words.get(1) {
            Some(Value::Int(last)) => Error::Hole { last: u64::try_from(*last).ok() },
            _ => Error::Hole { last: None },
        },
        6 => incarnation(words.get(1)).map_or_else(undecodable, |by| Error::MarkedDead { by }),
        7 => Error::LeaseGone,
        _ => undecodable(),
    })
}

/// What to do after an error of the server. Each one but [`ErrorAction::Refused`] means that the
/// command was not executed.
#[derive(Debug, PartialEq)]
pub(super) enum ErrorAction {
    /// Load the scripts, then send the command again.
    Load,
    /// Send the command to this server, which keeps the slot now.
    Moved(Address),
    /// Send the command to this server once, after `ASKING`.
    Ask(Address),
    /// Send the command again after a pause.
    Wait,
    /// Send the command again after a pause, on a new connection.
    Reconnect,
    /// Fail: the server refused the command.
    Refused(String),
}

/// What to do after this error; `from` is the server that sent it.
pub(super) fn error_action(error: &ServerError, from: &Address) -> ErrorAction {
    let code = error.code();
    match code {
        "NOSCRIPT" => ErrorAction::Load,
        "MOVED" | "ASK" => match error.details().and_then(|details| redirection(details, from)) {
            Some(address) if code == "MOVED" => ErrorAction::Moved(address),
            Some(address) => ErrorAction::Ask(address),
            None => ErrorAction::Wait,
        },
        "TRYAGAIN" | "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "BUSY" => ErrorAction::Wait,
        "READONLY" => ErrorAction::Reconnect,
        // The text of this error may quote the command, so it is left out.
        "ERR" => ErrorAction::Refused(format!("redis at {from} refused the command: ERR")),
        _ => ErrorAction::Refused(format!(
            "redis at {from} refused the command: {code} {}",
            error.details().unwrap_or("")
        )),
    }
}

/// Parses `<slot> <host>:<port>`. An empty host stands for the server that sent the answer.
fn redirection(details: &str, from: &Address) -> Option<Address> {
    let place = details.split_whitespace().nth(1)?;
    match place.strip_prefix(':') {
        Some(port) => Some(Address { host: from.host.clone(), port: port.parse().ok()? }),
        None => {
            // Redis writes an IPv6 address without brackets.
            let (host, port) = place.rsplit_once(':')?;
            Some(Address { host: host.into(), port: port.parse().ok()? })
        }
    }
}

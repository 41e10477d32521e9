//! Request ids and progress tokens: a string or an integer, which stay different (RPC-02, PRG-01).

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde::{Serialize, Serializer};

/// The id of a JSON-RPC request. Equality is by type and value: `7` is not `"7"`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RequestId {
    /// An integer id.
    Number(i64),
    /// A string id.
    String(Arc<str>),
}

/// The token that identifies a request in progress notifications. It has the type of an id.
pub type ProgressToken = RequestId;

impl RequestId {
    /// Maximum length of an id or progress token, in bytes, since sessions store them. A request
    /// with a longer one is rejected.
    pub const BYTES_MAX: usize = 1_024;

    /// The prefix of the ids of requests that a node sends to servers for itself.
    pub const OWN_PREFIX: &str = "roundhouse:";

    /// Parses an id from its JSON text; `None` if it is neither a string nor an integer.
    pub fn from_json(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }

    /// The JSON text of the id.
    pub fn to_json(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::String(text) => serde_json::to_string(&**text).unwrap_or_default(),
        }
    }
}

impl From<i64> for RequestId {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for RequestId {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl From<String> for RequestId {
    fn from(text: String) -> Self {
        Self::String(text.into())
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::String(text) => f.write_str(text),
        }
    }
}

impl Serialize for RequestId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_i64(*number),
            Self::String(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for RequestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IdVisitor;
        impl Visitor<'_> for IdVisitor {
            type Value = RequestId;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an integer")
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<RequestId, E> {
                Ok(RequestId::Number(number))
            }
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<RequestId, E> {
                i64::try_from(number).map(RequestId::Number).map_err(E::custom)
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<RequestId, E> {
                Ok(RequestId::String(text.into()))
            }
        }
        deserializer.deserialize_any(IdVisitor).map_err(D::Error::custom)
    }
}

//! How far a stream of a server was read.

use serde::{Deserialize, Serialize};

/// How far a stream of a server was read: with it the stream can be requested from there on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Which stream, among those that are about the same request, or about none. Empty for the usual one.
    #[serde(rename = "s", default, skip_serializing_if = "str::is_empty")]
    pub stream: Box<str>,
    /// The id of the last event that was read.
    #[serde(rename = "a")]
    pub at: Box<str>,
}

impl Position {
    /// The longest position that is kept, in bytes.
    pub const BYTES_MAX: usize = 1_024;

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.stream.len() + self.at.len()
    }
}

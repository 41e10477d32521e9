//! The id of a session: visible ASCII, opaque to all programs but its maker (SES-02, SES-03).

use std::fmt;
use std::sync::Arc;

/// Longest session id that is looked up at all, in bytes.
const LENGTH_MAX: usize = 128;

/// A session id as it stands in `Mcp-Session-Id`. Holding one proves nothing about
/// the holder (SES-04). Its `Debug` form is shortened: a reader of a log must not be
/// able to use a session.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Arc<str>);

impl SessionId {
    /// The id in a header's value; `None` where no session can have it.
    pub fn parse(value: &str) -> Option<Self> {
        let fits = !value.is_empty() && value.len() <= LENGTH_MAX;
        (fits && value.bytes().all(|byte| matches!(byte, 0x21..=0x7E))).then(|| Self(value.into()))
    }

    /// The whole id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", self.0.get(..8).unwrap_or(&self.0[..1]))
    }
}

//! The id of a session: visible ASCII, opaque to every program but the one that created it
//! (SES-02, SES-03).

use std::fmt;
use std::sync::Arc;

/// Maximum length of a session id, in bytes; a longer one is not looked up.
const LENGTH_MAX: usize = 128;

/// A session id as in `Mcp-Session-Id`. An id does not authenticate its sender (SES-04). Its
/// `Debug` form is shortened: a reader of a log must not be able to use a session.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Arc<str>);

impl SessionId {
    /// Parses the value of a header; `None` if no session can have this id.
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

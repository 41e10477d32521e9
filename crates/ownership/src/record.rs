//! What every node can know about one session.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::{Owner, Token};

/// Most tokens that a record remembers from before its owner's; the oldest is forgotten.
pub const FORMER_MAX: usize = 16;

/// One session, as all nodes know it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Who owns it, or owned it last.
    pub owner: Owner,
    /// The tokens before the owner's, newest first, at most [`FORMER_MAX`]. A record
    /// that falls back to one of them has been through a failover.
    pub former: Vec<Token>,
    /// Whose endpoint it was opened at.
    pub tenant: Arc<str>,
    /// The principal that opened it; for any other principal the session is unknown (SES-04).
    pub principal: Digest,
    /// The revision agreed on, as it is called on the wire. A node that does not know
    /// it cannot serve the session.
    pub revision: Cow<'static, str>,
    /// The params of the client's `initialize`, as received. They are kept for as long as the
    /// record is, so they are shared and are not a slice of a larger buffer.
    pub initialize: Arc<[u8]>,
    /// The changes since then, encoded by the session's owner.
    pub state: State,
    /// Whether the owner acts for the session.
    pub status: RecordStatus,
}

impl Record {
    /// Is `token` one of those before the owner's? A record that holds such a token has
    /// forgotten a claim; its rightful owner may re-assert itself.
    pub fn came_after(&self, token: Token) -> bool {
        self.former.contains(&token)
    }

    /// Makes `new` the owner, and the owner a former one.
    pub fn pass_to(&mut self, new: Owner) {
        self.former.insert(0, self.owner.token);
        self.former.truncate(FORMER_MAX);
        self.owner = new;
        self.status = RecordStatus::Owned;
    }
}

/// Whether a record's owner acts for the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStatus {
    /// It does, as long as its node lives.
    Owned,
    /// The owner has released the session; any node may claim it.
    Released,
    /// The session is over. The record stays for a while as a tombstone, so that
    /// nothing late brings the session back.
    Ended,
}

/// What changes in a session and must outlive its owner: log level, subscriptions, what
/// it takes to resume upstream. Opaque here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Rises with every change. A write that comes late cannot put back an older one.
    pub version: u64,
    /// The state, encoded. Shared, as `initialize` is.
    pub bytes: Arc<[u8]>,
}

/// A digest of who opened a session: enough to recognise them, not to become them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}…", self.0[0], self.0[1])
    }
}

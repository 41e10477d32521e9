//! The record of a session, which every node can read.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::{Owner, Token};

/// Most former tokens in a record; the oldest is dropped.
pub const FORMER_MAX: usize = 16;

/// The record of one session.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The owner, or the last owner.
    pub owner: Owner,
    /// The tokens before the owner's, newest first, at most [`FORMER_MAX`]. A record that falls
    /// back to one of them has lost a claim in a failover.
    pub former: Vec<Token>,
    /// The tenant of the session.
    pub tenant: Arc<str>,
    /// The principal that opened it; for any other principal the session is unknown (SES-04).
    pub principal: Digest,
    /// The negotiated revision, in the form of the protocol. A node that does not know it cannot
    /// serve the session.
    pub revision: Cow<'static, str>,
    /// The params of the client's `initialize`, as received. They are kept for as long as the
    /// record is, so they are shared and are not a slice of a larger buffer.
    pub initialize: Arc<[u8]>,
    /// The saved state, encoded by the session's owner.
    pub state: State,
    /// Whether the owner acts for the session.
    pub status: RecordStatus,
}

impl Record {
    /// Is `token` one of those before the owner's? A record that holds such a token has lost a
    /// claim; its rightful owner may re-assert itself.
    pub fn came_after(&self, token: Token) -> bool {
        self.former.contains(&token)
    }

    /// Makes `new` the owner, and the present owner a former one.
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
    /// It does, while its node is alive.
    Owned,
    /// The owner has released the session; any node may claim it.
    Released,
    /// The session has ended. The record stays for a while as a tombstone, so that no late write
    /// restores the session.
    Ended,
}

/// The state of a session that must outlive its owner: log level, subscriptions, the state to
/// resume a server. Opaque here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Rises with every change. A late write cannot replace a newer version.
    pub version: u64,
    /// The state, encoded. Shared, as `initialize` is.
    pub bytes: Arc<[u8]>,
}

/// A digest of the principal that opened a session: it can be compared, but not reversed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}…", self.0[0], self.0[1])
    }
}

//! The stored form of a session: its record and its log, and why they cannot be read.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{Position, RequestId, Revision};

use crate::{Definition, OwnerTag};

/// The stored form of a session.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The negotiated revision.
    pub revision: Revision,
    /// The params of the client's `initialize`, unchanged.
    pub initialize: Arc<[u8]>,
    /// The newest state; empty where none was saved yet.
    pub state: Arc<[u8]>,
    /// Its version.
    pub version: u64,
    /// The tags of former owners, newest first.
    pub former: Vec<OwnerTag>,
    /// The log, by number.
    pub log: Vec<(u64, Bytes)>,
}

/// What the link of a former owner has saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedLink {
    /// The definition of the server that it led to, if that is known.
    pub definition: Option<Definition>,
    /// Its state.
    pub state: Arc<str>,
    /// How far each stream of the server was read: those of requests in flight, and others.
    pub positions: Vec<(Option<RequestId>, Position)>,
}

/// Every entry of a session's log that can be replayed, encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayBuffer {
    /// The number of the first entry, or of the next one if there is none. It is also the floor.
    pub first: u64,
    /// The entries, without a hole.
    pub entries: Vec<Bytes>,
}

/// Why the stored form of a session cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// In a format that this version reads, but the bytes are corrupt. No version can read
    /// them: the session is lost.
    #[error("the session's {0} is corrupt; the session is lost")]
    Corrupt(&'static str),
    /// In a format that this version does not know. A node that runs the version that wrote
    /// it can restore the session.
    #[error("the session's {0} is of a newer version; serve the session with that version")]
    Newer(&'static str),
}

impl Unreadable {
    pub(crate) const RECORD: Self = Self::Corrupt("record");
    pub(crate) const STATE: Self = Self::Corrupt("state");
    pub(crate) const NEWER_STATE: Self = Self::Newer("state");
    pub(crate) const LOG: Self = Self::Corrupt("log");
    pub(crate) const NEWER_LOG: Self = Self::Newer("log");
}

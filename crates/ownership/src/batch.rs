//! Entries on their way into a session's log.

use std::time::Duration;

use bytes::Bytes;
use protocol::SessionId;

use crate::{Record, Token};

/// Consecutive entries for one session's log, under its owner's token.
///
/// An empty batch may prolong the session's life, trims the log to the floor, and is
/// refused with a hole where the log's end was lost. The owner of an idle session sends one
/// when the floor rises; otherwise the log would keep entries that no client can resume from.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Whose log.
    pub session: SessionId,
    /// The token of its owner.
    pub token: Token,
    /// The number of the first entry; each further one is one more. In an empty batch,
    /// the number that the next entry will have.
    pub first: u64,
    /// The oldest number still replayable; the log drops what is below. An owner never
    /// lowers it. Its distance to the newest number is what bounds the log.
    pub floor: u64,
    /// The entries, encoded. Kept as they are, not copied: each should own its bytes and
    /// not be a slice of something larger.
    pub entries: Vec<Bytes>,
    /// How long the session outlives this batch if nothing else happens to it, and the
    /// batch [prolongs](Batch::prolongs) its life.
    pub ttl: Duration,
    /// The session's time to live begins anew; else it goes on. Not every batch needs to:
    /// for the store that is as much work as to append. A re-assertion always does.
    pub prolongs: bool,
}

/// The log holds a batch, and everything before it that can be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The last number of the batch; of an empty one, the number before its first.
    /// `None` where nothing was ever numbered.
    pub through: Option<u64>,
}

/// What a claimant is given.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// The session, now the claimant's.
    pub record: Record,
    /// Its log, by number.
    pub log: Vec<(u64, Bytes)>,
}

/// What a claimant knows about the owner it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It is this one (dead, or this very node).
    Token(Token),
    /// That owner, whichever it was, has released the session.
    Released,
}

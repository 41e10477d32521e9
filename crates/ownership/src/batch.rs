//! Batches of entries for a session's log.

use std::time::Duration;

use bytes::Bytes;
use protocol::SessionId;

use crate::{Record, Token};

/// Consecutive entries for one session's log, under its owner's token.
///
/// An empty batch may refresh the session's time to live and trims the log to the floor. The
/// store refuses it with a hole if it has lost the end of the log. The owner of an idle session
/// sends one when the floor rises; otherwise the log would keep entries that no client can resume
/// from.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The session of the log.
    pub session: SessionId,
    /// The token of its owner.
    pub token: Token,
    /// The number of the first entry; each further one is one more. In an empty batch,
    /// the number that the next entry will have.
    pub first: u64,
    /// The oldest number that can still be replayed; the log drops the entries below it. An owner
    /// never lowers it. Its distance to the newest number bounds the log.
    pub floor: u64,
    /// The entries, encoded. They are kept without a copy: each should own its bytes and not be a
    /// slice of something larger.
    pub entries: Vec<Bytes>,
    /// Time to live of the session, if the batch [refreshes](Batch::prolongs) it and nothing else
    /// does.
    pub ttl: Duration,
    /// Does the batch refresh the session's time to live? Not every batch needs to: for the store
    /// a refresh is as much work as an append. A re-assertion always does.
    pub prolongs: bool,
}

/// The log holds a batch, and everything before it that can be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The last number of the batch; of an empty one, the number before its first.
    /// `None` if no entry ever had a number.
    pub through: Option<u64>,
}

/// What a successful claim returns.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// The session, now the claimant's.
    pub record: Record,
    /// Its log, by number.
    pub log: Vec<(u64, Bytes)>,
}

/// The owner that a claim expects in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// This owner (dead, or this very node).
    Token(Token),
    /// Any owner, if it has released the session.
    Released,
}

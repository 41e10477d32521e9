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
    /// Rises by one with every change. A late write cannot replace a newer version.
    pub version: u64,
    /// The state, encoded.
    pub bytes: StateBytes,
}

/// Bytes to add to the state of a record. It is written only if the record has the state of the
/// version before them.
#[derive(Clone, Debug, PartialEq)]
pub struct StateExtension {
    /// The version that the record must have.
    pub after: u64,
    /// The version that it has with them.
    pub version: u64,
    /// The bytes.
    pub bytes: Arc<[u8]>,
}

/// The bytes of a state: all of it as it was once, and behind it the differences since.
#[derive(Clone)]
pub struct StateBytes(Form);

#[derive(Clone)]
enum Form {
    /// Without a difference. Shared, as `initialize` is.
    Whole(Arc<[u8]>),
    Extended(Box<Extended>),
}

#[derive(Clone)]
struct Extended {
    /// Ends with differences if it was read from a store with them.
    base: Arc<[u8]>,
    /// One for each version after that of `base`.
    since: Vec<Arc<[u8]>>,
}

impl StateBytes {
    /// Bytes that were read from a store. They end with differences, or they do not.
    pub fn read(bytes: Arc<[u8]>, has_differences: bool) -> Self {
        Self(if has_differences {
            Form::Extended(Box::new(Extended { base: bytes, since: Vec::new() }))
        } else {
            Form::Whole(bytes)
        })
    }

    /// The same bytes in one piece.
    pub fn joined(self) -> Self {
        Self::read(self.to_bytes(), self.has_differences())
    }

    /// Adds what changed from one version to the next.
    pub fn push(&mut self, difference: Arc<[u8]>) {
        match &mut self.0 {
            Form::Whole(whole) => {
                let extended = Extended { base: std::mem::take(whole), since: vec![difference] };
                self.0 = Form::Extended(Box::new(extended));
            }
            Form::Extended(extended) => extended.since.push(difference),
        }
    }

    /// Do differences follow the whole state?
    pub fn has_differences(&self) -> bool {
        matches!(self.0, Form::Extended(_))
    }

    /// The bytes that the last `versions` changes added; `None` if those did not only add bytes.
    pub fn added(&self, versions: u64) -> Option<Arc<[u8]>> {
        let (_, since) = self.parts();
        let versions = usize::try_from(versions).ok()?;
        match &since[since.len().checked_sub(versions)?..] {
            [one] => Some(Arc::clone(one)),
            added => Some(added.concat().into()),
        }
    }

    /// All bytes. Copies them if they are in several pieces.
    pub fn to_bytes(&self) -> Arc<[u8]> {
        let (base, since) = self.parts();
        if since.is_empty() {
            return Arc::clone(base);
        }
        let parts = std::iter::once(base).chain(since);
        parts.map(|part| &**part).collect::<Vec<_>>().concat().into()
    }

    /// Is there no state?
    pub fn is_empty(&self) -> bool {
        let (base, since) = self.parts();
        base.is_empty() && since.is_empty()
    }

    fn parts(&self) -> (&Arc<[u8]>, &[Arc<[u8]>]) {
        match &self.0 {
            Form::Whole(whole) => (whole, &[]),
            Form::Extended(extended) => (&extended.base, &extended.since),
        }
    }
}

impl Default for StateBytes {
    fn default() -> Self {
        Self(Form::Whole(Arc::default()))
    }
}

impl From<Arc<[u8]>> for StateBytes {
    fn from(whole: Arc<[u8]>) -> Self {
        Self::read(whole, false)
    }
}

impl<const N: usize> From<[u8; N]> for StateBytes {
    fn from(whole: [u8; N]) -> Self {
        Arc::<[u8]>::from(whole).into()
    }
}

impl From<&[u8]> for StateBytes {
    fn from(whole: &[u8]) -> Self {
        Arc::<[u8]>::from(whole).into()
    }
}

/// Equal bytes are equal, however they were added.
impl PartialEq for StateBytes {
    fn eq(&self, other: &Self) -> bool {
        self.has_differences() == other.has_differences() && self.to_bytes() == other.to_bytes()
    }
}

impl fmt::Debug for StateBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = if self.has_differences() { "whole and differences" } else { "whole" };
        write!(f, "{form} {:?}", self.to_bytes())
    }
}

/// A digest of the principal that opened a session: it can be compared, but not reversed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}…", self.0[0], self.0[1])
    }
}

//! The life cycle of a session at its owner.

use conversation::{Millis, Refusal};

use super::log_writer::LogWriter;
use super::record::PendingRecord;
use crate::registry::Registration;

/// The state of a session at its owner.
pub(super) enum Life {
    /// The store holds no record: the handshake has not succeeded, or the record is being created.
    Unrecorded(Box<PendingRecord>, Registration),
    /// The store holds the record.
    Recorded(Recorded),
    /// The session leaves this owner, and the store does not hold its end or release yet.
    Leaving(Recorded, Departure),
    /// The session is over at this owner.
    Over,
}

/// A session with a record in the store.
pub(super) struct Recorded {
    pub(super) log_writer: LogWriter,
    pub(super) registration: Registration,
}

/// The way and deadline of a session that leaves its owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    /// Whether another owner continues the session; otherwise it ends.
    pub(super) moves: bool,
    /// When this owner stops trying to write the end or release.
    pub(super) until: Millis,
}

impl Departure {
    /// The refusal for each request that arrives now. Such a request is not started.
    pub(super) fn refusal(self) -> Refusal {
        if self.moves { Refusal::Moved } else { Refusal::UnknownSession }
    }
}

impl Life {
    /// The log writer; `None` before the record exists and after the end.
    pub(super) fn log_writer(&self) -> Option<&LogWriter> {
        match self {
            Self::Recorded(recorded) | Self::Leaving(recorded, _) => Some(&recorded.log_writer),
            Self::Unrecorded(..) | Self::Over => None,
        }
    }

    /// The log writer; `None` before the record exists and after the end.
    pub(super) fn log_writer_mut(&mut self) -> Option<&mut LogWriter> {
        match self {
            Self::Recorded(recorded) | Self::Leaving(recorded, _) => Some(&mut recorded.log_writer),
            Self::Unrecorded(..) | Self::Over => None,
        }
    }

    /// The session's entry in the registry; `None` after the end.
    pub(super) fn registration(&self) -> Option<&Registration> {
        match self {
            Self::Unrecorded(_, registration) => Some(registration),
            Self::Recorded(recorded) | Self::Leaving(recorded, _) => Some(&recorded.registration),
            Self::Over => None,
        }
    }

    /// The record that is not created yet.
    pub(super) fn pending_record(&mut self) -> Option<&mut PendingRecord> {
        match self {
            Self::Unrecorded(pending_record, _) => Some(pending_record),
            Self::Recorded(_) | Self::Leaving(..) | Self::Over => None,
        }
    }

    /// Whether the record is being created and the actor does not wait for that yet. While it does,
    /// it handles nothing else.
    pub(super) fn is_being_recorded(&self) -> bool {
        matches!(self, Self::Unrecorded(pending_record, _) if pending_record.creation.is_some())
    }

    /// Whether the session stays at this owner.
    pub(super) fn stays(&self) -> bool {
        matches!(self, Self::Unrecorded(..) | Self::Recorded(_))
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }

    pub(super) fn departure(&self) -> Option<Departure> {
        match self {
            Self::Leaving(_, departure) => Some(*departure),
            Self::Unrecorded(..) | Self::Recorded(_) | Self::Over => None,
        }
    }

    /// Sets the state to `Over` and returns the former state.
    pub(super) fn replace_with_over(&mut self) -> Self {
        std::mem::replace(self, Self::Over)
    }
}

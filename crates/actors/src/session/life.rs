//! How far a session has come at this owner.

use conversation::{Millis, Refusal};

use super::log_writer::LogWriter;
use super::record::PendingRecord;
use crate::registry::Registration;

/// How far a session has come at this owner.
pub(super) enum Life {
    /// The store holds no record of it: the handshake has not succeeded, or the record is being
    /// created.
    Unrecorded(Box<PendingRecord>, Registration),
    /// The store holds its record.
    Recorded(Recorded),
    /// It leaves this owner: the store does not hold its end or its release yet.
    Leaving(Recorded, Departure),
    /// Nothing more is done for it.
    Over,
}

/// A session of which the store holds a record.
pub(super) struct Recorded {
    pub(super) log_writer: LogWriter,
    pub(super) registration: Registration,
}

/// A session that leaves its owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    /// Another owner goes on with it; otherwise it ends.
    pub(super) moves: bool,
    /// When this owner stops trying to write that.
    pub(super) until: Millis,
}

impl Departure {
    /// The refusal for each request that arrives now. Such a request is not carried out.
    pub(super) fn refusal(self) -> Refusal {
        if self.moves { Refusal::Moved } else { Refusal::UnknownSession }
    }
}

impl Life {
    /// Its writer, from the record on.
    pub(super) fn log_writer(&self) -> Option<&LogWriter> {
        match self {
            Self::Recorded(recorded) | Self::Leaving(recorded, _) => Some(&recorded.log_writer),
            Self::Unrecorded(..) | Self::Over => None,
        }
    }

    /// Its writer, from the record on.
    pub(super) fn log_writer_mut(&mut self) -> Option<&mut LogWriter> {
        match self {
            Self::Recorded(recorded) | Self::Leaving(recorded, _) => Some(&mut recorded.log_writer),
            Self::Unrecorded(..) | Self::Over => None,
        }
    }

    /// The record that is still to be created.
    pub(super) fn pending_record(&mut self) -> Option<&mut PendingRecord> {
        match self {
            Self::Unrecorded(pending_record, _) => Some(pending_record),
            Self::Recorded(_) | Self::Leaving(..) | Self::Over => None,
        }
    }

    /// Is its record being created?
    pub(super) fn is_being_recorded(&self) -> bool {
        matches!(self, Self::Unrecorded(pending_record, _) if pending_record.creation.is_some())
    }

    /// Does it stay at this owner?
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

    /// The end of its life at this owner; what it was before.
    pub(super) fn replace_with_over(&mut self) -> Self {
        std::mem::replace(self, Self::Over)
    }
}

//! What an owner is to do with its session finally.

/// The final operation of an owner on its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    Keep,
    /// Release it once the store holds everything. `sent`: a release was sent under the present
    /// token, and may have been done.
    Release {
        sent: bool,
    },
    /// End it. `release_sent`: before that, a release was sent under the present token.
    End {
        release_sent: bool,
    },
}

impl Goal {
    pub(super) fn is_end(self) -> bool {
        matches!(self, Self::End { .. })
    }

    /// Was a release sent under the present token?
    pub(super) fn is_release_sent(self) -> bool {
        matches!(self, Self::Release { sent: true } | Self::End { release_sent: true })
    }

    pub(super) fn release(&mut self) {
        if *self == Self::Keep {
            *self = Self::Release { sent: false };
        }
    }

    pub(super) fn end(&mut self) {
        *self = Self::End { release_sent: self.is_release_sent() };
    }

    /// A release is sent. Returns whether one was sent before.
    pub(super) fn send_release(&mut self) -> bool {
        let was_sent = self.is_release_sent();
        match self {
            Self::End { release_sent } => *release_sent = true,
            Self::Release { .. } | Self::Keep => *self = Self::Release { sent: true },
        }
        was_sent
    }

    /// The session is owned under another token, under which no release was sent.
    pub(super) fn token_changed(&mut self) {
        match self {
            Self::Keep => {}
            Self::Release { sent } => *sent = false,
            Self::End { release_sent } => *release_sent = false,
        }
    }
}

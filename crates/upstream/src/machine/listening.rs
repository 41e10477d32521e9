//! The stream of messages that belong to no request: when it is opened again.

use std::time::Duration;

use super::calls::{backoff, retry_of};
use crate::Failure;
use crate::exchange::{ExchangeEvent, HeaderText};

/// How long to wait before the stream is opened again if the server did not say it.
const RETRY: Duration = Duration::from_secs(1);
/// How long to wait while all connections for streams are in use.
const BUSY: Duration = Duration::from_secs(30);
/// How long to wait after the credential was refused.
const CREDENTIAL: Duration = Duration::from_secs(30);

/// The stream of messages that belong to no request.
#[derive(Debug)]
pub(super) struct Listening {
    cursor: Option<HeaderText>,
    retry: Duration,
    /// Failed tries since the stream was open.
    failures: u32,
}

impl Default for Listening {
    fn default() -> Self {
        Self { cursor: None, retry: RETRY, failures: 0 }
    }
}

impl Listening {
    /// The stream was read up to this event by another machine.
    pub(super) fn continue_after(&mut self, cursor: Option<HeaderText>) {
        self.cursor = cursor;
    }

    /// The last event id.
    pub(super) fn cursor(&self) -> Option<&HeaderText> {
        self.cursor.as_ref()
    }

    /// After which time the stream is opened again; `None` if it is open, or is not to be.
    pub(super) fn on_event(&mut self, event: &ExchangeEvent) -> Option<Duration> {
        match event {
            ExchangeEvent::Opened(_) => {
                self.failures = 0;
                None
            }
            ExchangeEvent::Event { id, retry_ms, .. } => {
                self.cursor = id.clone().or(self.cursor.take());
                self.retry = retry_ms.map_or(self.retry, retry_of);
                None
            }
            ExchangeEvent::Ended => Some(self.retry),
            ExchangeEvent::Failed(Failure::Busy) => Some(BUSY),
            ExchangeEvent::Failed(failure) if failure.is_transient() => Some(self.failed()),
            // 409: a former owner's connection still has the stream.
            ExchangeEvent::Refused { status: 409 | 429 | 500.., .. } => Some(self.failed()),
            // The session may get another token, or the settings another credential.
            ExchangeEvent::Refused { status: 401, .. }
            | ExchangeEvent::Failed(Failure::Credential(_)) => Some(CREDENTIAL),
            // The server has no such stream (405), or none that can be read.
            _ => None,
        }
    }

    fn failed(&mut self) -> Duration {
        self.failures += 1;
        backoff(self.retry, self.failures)
    }
}

//! Reads the lines of a pipe of a child, within the tenant's share of bytes.

use std::time::Duration;

use budget::{Held, Share, in_granules};
use bytes::Bytes;
use protocol::{Line, LineSplitter};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::{Instant, sleep};

/// How long nothing is read from a process while its tenant's share is exceeded. Then a little is
/// read, or the link ends if the process has written a long line in part.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(5);

/// The interval at which it is checked whether there is room.
const ROOM_RETRY: Duration = Duration::from_millis(50);

/// Reads the lines of a pipe from the process.
pub(super) struct Lines<R> {
    pipe: R,
    splitter: LineSplitter,
    /// The bytes of the unended line, as charged to the tenant's share.
    held: Held,
}

/// The result of waiting for a line.
pub(super) enum Read {
    Line(Line),
    /// The pipe has ended or failed.
    Ended,
    /// The tenant's share has no room for the unended line.
    NoRoom,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(pipe: R, line_bytes_max: usize, share: &Share) -> Self {
        let held = Held::nothing(share);
        Self { pipe, splitter: LineSplitter::new(line_bytes_max), held }
    }

    /// Waits for the next line. Cancel safe.
    pub(super) async fn next(&mut self) -> Read {
        loop {
            if let Some(line) = self.splitter.next_line() {
                return Read::Line(line);
            }
            if !self.charge().await {
                return Read::NoRoom;
            }
            if let Ok(0) | Err(_) = self.pipe.read_buf(self.splitter.room()).await {
                return Read::Ended;
            }
        }
    }

    /// Charges the unended line to the tenant's share. While the share is exceeded, also by what the
    /// tenant's sessions keep, nothing is read for up to [`ROOM_WAIT_MAX`]. Returns false if that is
    /// over and the line is long.
    async fn charge(&mut self) -> bool {
        let bytes = in_granules(self.splitter.buffered());
        if bytes != self.held.amount() {
            self.held.set(bytes);
        }
        let deadline = Instant::now() + ROOM_WAIT_MAX;
        while self.held.share().is_exceeded() {
            if Instant::now() >= deadline {
                return bytes == 0;
            }
            sleep(ROOM_RETRY).await;
        }
        true
    }

    /// The last line, if the pipe ended inside it.
    pub(super) fn take_unended(&mut self) -> Option<Bytes> {
        self.splitter.take_unended()
    }
}

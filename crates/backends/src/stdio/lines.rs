//! Reads the lines of a pipe of a child, within the tenant's share of bytes.

use std::sync::Arc;
use std::time::Duration;

use budget::{Held, Share, in_granules};
use bytes::Bytes;
use fairness::{MessagePermits, TickPermit, compute_for_bytes};
use protocol::{Body, Limits, Line, LineSplitter, Rejection};
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
    /// Whose permits it takes: the tenant's.
    tenant: Arc<str>,
    permits: MessagePermits,
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
    pub(super) fn new(pipe: R, line_bytes_max: usize, tenant: &Arc<str>, share: &Share) -> Self {
        let (splitter, held) = (LineSplitter::new(line_bytes_max), Held::nothing(share));
        let permits = MessagePermits::default();
        Self { pipe, splitter, tenant: Arc::clone(tenant), permits, held }
    }

    /// Waits for the next line. Cancel safe.
    pub(super) async fn next(&mut self) -> Read {
        loop {
            self.permits.next(&self.tenant).await;
            if let Some(line) = self.splitter.next_line() {
                self.permits.note_handled();
                return Read::Line(line);
            }
            if !self.charge().await {
                return Read::NoRoom;
            }
            match self.pipe.read_buf(self.splitter.room()).await {
                Ok(0) | Err(_) => return Read::Ended,
                Ok(bytes) => TickPermit::for_bytes(&self.tenant, bytes).await,
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

/// Parses a line; `None` if it is blank. A long one is scanned on another thread, so that it delays the
/// calls of other tenants little. Meanwhile it stays charged: no further line is read.
pub(super) async fn parse(tenant: &Arc<str>, line: Bytes) -> Option<Result<Body, Rejection>> {
    compute_for_bytes(tenant, line.len(), move || {
        let is_blank = line.iter().all(u8::is_ascii_whitespace);
        (!is_blank).then(|| protocol::parse(line, &Limits::default()))
    })
    .await
}

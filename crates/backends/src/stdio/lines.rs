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
        let mut has_read = false;
        loop {
            self.permits.next(&self.tenant).await;
            if let Some(line) = self.splitter.next_line() {
                self.permits.note_handled();
                return Read::Line(line);
            }
            if std::mem::replace(&mut has_read, true) {
                // A part of a line takes about as long as a short one.
                self.permits.note_handled();
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;
    use std::pin::Pin;
    use std::rc::Rc;
    use std::task::{Context, Poll};

    use budget::Budget;
    use tokio::io::ReadBuf;
    use tokio::task::{LocalSet, yield_now};

    use super::*;

    /// A pipe of a process that writes its bytes one by one, in each tick another one.
    struct OneByOne {
        read: Rc<Cell<usize>>,
        has_byte: bool,
    }

    impl AsyncRead for OneByOne {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.has_byte = !self.has_byte;
            if !self.has_byte {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            buffer.put_slice(b"x");
            self.read.set(self.read.get() + 1);
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn bytes_that_complete_no_line_need_permits_too() {
        let (read, pipes) = (Rc::new(Cell::new(0)), LocalSet::new());
        for _ in 0..64 {
            let pipe = OneByOne { read: Rc::clone(&read), has_byte: false };
            pipes.spawn_local(async move {
                let share = Budget::unlimited().unnamed_share("a");
                Lines::new(pipe, 1 << 20, &"a".into(), &share).next().await
            });
        }
        pipes
            .run_until(async {
                for _ in 0..1_000 {
                    yield_now().await;
                }
            })
            .await;
        let read = read.get();
        assert!((4_000..=64 * 8 + 2 * 8 * 1_000).contains(&read), "{read} bytes");
    }
}

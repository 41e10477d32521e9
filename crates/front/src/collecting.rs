//! Collects the bodies of requests, bounded in size, time and rate.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_http::Payload;
use actix_http::error::PayloadError;
use bytes::Bytes;
use fairness::{Blocks, MessagePermits};
use futures_util::Stream;
use tokio::time::{Instant, timeout_at};

use crate::Settings;
use crate::head_timeout::HeadProgress;
use crate::metrics::{Cut, count_cut};
use crate::unfinished::{Counted, UnfinishedBodies};

/// Why a body was not collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uncollected {
    /// It is longer than its limit.
    TooLarge {
        /// The setting of the limit.
        setting: &'static str,
        /// The limit, in bytes.
        bytes_max: usize,
    },
    /// It did not arrive in time, or not fast enough.
    TooSlow {
        /// The setting of the limit.
        setting: &'static str,
    },
    /// The memory was needed for another body of the tenant, and this one was the slowest.
    Cut,
    /// Unfinished bodies use all the memory that the tenant may have for them, and this one has waited for it, as
    /// long as it may or until its connection was needed for another client.
    TooMany,
    /// The client disconnected, or the framing of the body is broken.
    Broken,
}

impl From<PayloadError> for Uncollected {
    fn from(_: PayloadError) -> Self {
        Self::Broken
    }
}

/// The limit of one body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// Maximum length in bytes.
    pub(crate) bytes_max: usize,
    /// The setting of the limit.
    pub(crate) setting: &'static str,
}

impl Bound {
    fn of_session(settings: &Settings) -> Self {
        Self { bytes_max: settings.body_bytes_max, setting: "front.body_bytes_max" }
    }

    fn of_initialize(settings: &Settings) -> Self {
        let bytes_max = settings.initialize_body_bytes_max;
        if bytes_max < settings.body_bytes_max {
            Self { bytes_max, setting: "front.initialize_body_bytes_max" }
        } else {
            Self::of_session(settings)
        }
    }

    /// Refuses a body that is announced to be longer.
    pub(crate) fn check(self, announced: Option<u64>) -> Result<(), Uncollected> {
        match announced {
            Some(bytes) if bytes > self.bytes_max as u64 => Err(self.exceeded()),
            _ => Ok(()),
        }
    }

    fn exceeded(self) -> Uncollected {
        Uncollected::TooLarge { setting: self.setting, bytes_max: self.bytes_max }
    }
}

/// How fast a body must arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// How long a body may take.
    whole: Duration,
    /// How long it may take at any rate.
    grace: Duration,
    /// The least average rate after that; 0 for no limit.
    bytes_per_sec_min: u64,
}

impl Pace {
    fn new(settings: &Settings) -> Self {
        Self {
            whole: Duration::from_secs(settings.body_timeout_secs),
            grace: Duration::from_secs(settings.body_grace_secs),
            bytes_per_sec_min: settings.body_bytes_per_sec_min,
        }
    }

    /// How long a body of which `received` bytes have arrived may take until its next bytes
    /// arrive, from its begin; and the setting that says so. `waited` is the part of this time in
    /// which the node read nothing.
    fn limit(self, received: u64, waited: Duration) -> (Duration, &'static str) {
        let whole = (self.whole, "front.body_timeout_secs");
        if self.bytes_per_sec_min == 0 {
            return whole;
        }
        let earned = Duration::from_millis(received.saturating_mul(1_000) / self.bytes_per_sec_min);
        let slow = (self.grace.max(earned) + waited, "front.body_bytes_per_sec_min");
        if slow.0 < whole.0 { slow } else { whole }
    }
}

/// Collects bodies within their limits. All workers share the memory.
#[derive(Clone, Debug)]
pub(crate) struct Collecting {
    /// The limit of a body that is for a session.
    pub(crate) of_session: Bound,
    /// The limit of the body of a POST without a session id.
    pub(crate) of_initialize: Bound,
    pace: Pace,
    unfinished: Arc<UnfinishedBodies>,
}

/// A first piece of at most this size is not counted: a connection has a buffer of about that
/// size anyway, and most bodies fit into it.
const SMALL_BYTES: usize = 8 << 10;

/// How long a body waits for memory. A refusal would make the client of a session end the session.
const WAIT_IN_SESSION: Duration = Duration::from_secs(5);
const WAIT_WITHOUT_SESSION: Duration = Duration::from_secs(2);

impl Collecting {
    /// The limits of these settings.
    pub(crate) fn new(settings: &Settings, unfinished: UnfinishedBodies) -> Self {
        Self {
            of_session: Bound::of_session(settings),
            of_initialize: Bound::of_initialize(settings),
            pace: Pace::new(settings),
            unfinished: Arc::new(unfinished),
        }
    }

    /// Collects a body of a tenant's client. A body that arrives in one piece is not copied. If
    /// collecting fails, the rest stays in the payload. `connection`: the one that it arrives on.
    pub(crate) async fn collect(
        &self,
        payload: &mut Payload,
        connection: Option<&HeadProgress>,
        announced: Option<u64>,
        tenant: &Arc<str>,
        bound: Bound,
        in_session: bool,
    ) -> Result<Bytes, Uncollected> {
        bound.check(announced)?;
        let mut arriving = Arriving {
            payload,
            connection,
            pace: self.pace,
            began: Instant::now(),
            received: 0,
            wait_left: if in_session { WAIT_IN_SESSION } else { WAIT_WITHOUT_SESSION },
            waited: Duration::ZERO,
            counted: None,
            permits: MessagePermits::default(),
        };
        let collected = self.gather(&mut arriving, tenant, bound).await;
        match &collected {
            Err(Uncollected::TooSlow { .. }) => count_cut(Cut::Slow),
            Err(Uncollected::Cut) => count_cut(Cut::Room),
            _ => {}
        }
        collected
    }

    async fn gather(
        &self,
        arriving: &mut Arriving<'_>,
        tenant: &Arc<str>,
        bound: Bound,
    ) -> Result<Bytes, Uncollected> {
        let Some(first) = arriving.next().await? else { return Ok(Bytes::new()) };
        if first.len() > bound.bytes_max {
            return Err(bound.exceeded());
        }
        if first.len() > SMALL_BYTES {
            arriving.count(&self.unfinished, tenant, first.len()).await?;
            arriving.note_read(first.len());
        }
        let Some(second) = arriving.next().await? else { return Ok(first) };
        // Boxed: most bodies arrive in one piece.
        Box::pin(self.gather_more(arriving, tenant, bound, first, second)).await
    }

    /// Gathers a body of several pieces, of which these are the first two.
    async fn gather_more(
        &self,
        arriving: &mut Arriving<'_>,
        tenant: &Arc<str>,
        bound: Bound,
        first: Bytes,
        second: Bytes,
    ) -> Result<Bytes, Uncollected> {
        let mut body = Blocks::default();
        body.add(&first);
        drop(first);
        let mut more = Some(second);
        while let Some(chunk) = more {
            if body.len() + chunk.len() > bound.bytes_max {
                return Err(bound.exceeded());
            }
            arriving.count(&self.unfinished, tenant, chunk.len()).await?;
            arriving.wait_for_permit(tenant, chunk.len()).await;
            arriving.note_read(chunk.len());
            body.add(&chunk);
            more = arriving.next().await?;
        }
        Ok(body.join(tenant).await)
    }
}

/// One body that is being collected.
struct Arriving<'a> {
    payload: &'a mut Payload,
    connection: Option<&'a HeadProgress>,
    pace: Pace,
    began: Instant,
    received: u64,
    /// How long the body may still wait for memory.
    wait_left: Duration,
    /// How long it waited for memory and for permits. Meanwhile its client cannot send more.
    waited: Duration,
    /// The memory that the body uses, once that is counted.
    counted: Option<Counted>,
    permits: MessagePermits,
}

impl Arriving<'_> {
    /// The next piece; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Uncollected> {
        let (limit, setting) = self.pace.limit(self.received, self.waited);
        let piece = timeout_at(self.began + limit, poll_fn(|context| self.poll_next(context)));
        let piece = piece.await.unwrap_or(Err(Uncollected::TooSlow { setting }))?;
        if let Some(piece) = &piece {
            self.received += piece.len() as u64;
        }
        Ok(piece)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Uncollected>> {
        if self.counted.as_ref().is_some_and(|counted| counted.poll_cut(context)) {
            return Poll::Ready(Err(Uncollected::Cut));
        }
        let piece = Pin::new(&mut *self.payload).poll_next(context);
        piece.map(|piece| piece.transpose().map_err(Uncollected::from))
    }

    /// Counts the memory of a piece that has arrived, and waits until the tenant may have it.
    async fn count(
        &mut self,
        unfinished: &Arc<UnfinishedBodies>,
        tenant: &Arc<str>,
        bytes: usize,
    ) -> Result<(), Uncollected> {
        let counted = match &mut self.counted {
            Some(counted) => counted,
            none => none.insert(unfinished.begin(tenant)),
        };
        let began = Instant::now();
        let grown = counted.grow(bytes, &mut self.wait_left, self.connection).await;
        self.waited += began.elapsed();
        grown
    }

    /// Notes that a piece of so many bytes is read.
    fn note_read(&self, bytes: usize) {
        if let Some(counted) = &self.counted {
            counted.note_read(bytes);
        }
    }

    /// Waits until a piece of so many bytes may be handled. Until then, the HTTP layer reads no further.
    async fn wait_for_permit(&mut self, tenant: &Arc<str>, bytes: usize) {
        let (began, permit) = (Instant::now(), self.permits.next_piece(tenant, bytes));
        match &self.counted {
            Some(counted) => counted.wait_for(permit).await,
            None => permit.await,
        }
        self.waited += began.elapsed();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use fairness::TickPermit;
    use futures_util::{StreamExt as _, stream};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_waits_for_permits_has_more_time_and_is_not_cut() {
        const PIECE: Bytes = Bytes::from_static(&[b'x'; fairness::SHORT_BYTES + 1]);
        let settings = Settings { bodies_bytes_max: 8 << 20, ..Settings::default() };
        let bodies = UnfinishedBodies::new(settings.body_budget([]));
        let collecting = Collecting::new(&settings, bodies);
        let unfinished = Arc::clone(&collecting.unfinished);
        // Each piece arrives a little after the last one was taken. All but the first need a permit.
        let needs_permit = Rc::new(Cell::new(false));
        let of_pieces = Rc::clone(&needs_permit);
        let pieces = stream::unfold(0, move |sent| {
            let needs_permit = Rc::clone(&of_pieces);
            async move {
                tokio::task::yield_now().await;
                needs_permit.set((1..3).contains(&sent));
                (sent < 3).then_some((Ok(PIECE), sent + 1))
            }
        });
        let (tenant, bound) = ("a".into(), collecting.of_session);
        let mut payload: Payload = Payload::Stream { payload: Box::pin(pieces) };
        let collect = collecting.collect(&mut payload, None, None, &tenant, bound, true);
        // Another body needs more memory than is left. Then another tenant's message takes twice as long as the body may.
        let busy = async {
            loop {
                TickPermit::of(&"b".into()).await;
                if needs_permit.take() {
                    let (mut other, mut no_wait) = (unfinished.begin(&"a".into()), Duration::ZERO);
                    let grown = other.grow(settings.bodies_bytes_max, &mut no_wait, None).await;
                    assert_eq!(grown, Err(Uncollected::TooMany));
                    tokio::time::advance(Duration::from_secs(10)).await;
                }
            }
        };
        let collected = tokio::select! {
            biased;
            collected = collect => collected,
            () = busy => Err(Uncollected::Broken),
        };
        assert_eq!(collected.map(|body| body.len()), Ok(3 * PIECE.len()));
    }

    /// How many ticks pass until the last of so many pieces of a body is read, if each is there at once.
    async fn ticks_to_read(piece: &'static [u8], pieces: usize) -> usize {
        let settings = Settings::default();
        let bodies = UnfinishedBodies::new(settings.body_budget([]));
        let collecting = Collecting::new(&settings, bodies);
        let (ticks, at_last) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (now, taken) = (Rc::clone(&ticks), Rc::clone(&at_last));
        let body = stream::repeat_with(move || {
            taken.set(now.get());
            Ok(Bytes::from_static(piece))
        });
        let (tenant, bound) = ("a".into(), collecting.of_session);
        let mut payload: Payload = Payload::Stream { payload: Box::pin(body.take(pieces)) };
        let collect = collecting.collect(&mut payload, None, None, &tenant, bound, true);
        let count = async {
            loop {
                tokio::task::yield_now().await;
                ticks.set(ticks.get() + 1);
            }
        };
        let collected = tokio::select! {
            biased;
            collected = collect => collected,
            () = count => Err(Uncollected::Broken),
        };
        assert_eq!(collected.map(|body| body.len()), Ok(pieces * piece.len()));
        at_last.get()
    }

    #[tokio::test]
    async fn a_body_in_short_pieces_needs_permits_as_well() {
        for piece in [&[b'x'; fairness::SHORT_BYTES][..], b"x"] {
            let ticks = ticks_to_read(piece, 400).await;
            // One for every eight pieces, perhaps two in a tick.
            assert!(ticks >= 400 / 8 / 2, "{ticks} ticks");
        }
    }

    #[test]
    fn a_body_may_take_as_long_as_its_bytes_earn() {
        let pace = Pace {
            whole: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            bytes_per_sec_min: 16 << 10,
        };
        let limit = |received| pace.limit(received, Duration::ZERO).0.as_secs();
        assert_eq!((limit(0), limit(80 << 10), limit(96 << 10)), (5, 5, 6));
        assert_eq!((limit(464 << 10), limit(4 << 20), limit(u64::MAX)), (29, 30, 30));
        let (waited, setting) = pace.limit(0, Duration::from_secs(2));
        assert_eq!((waited.as_secs(), setting), (7, "front.body_bytes_per_sec_min"));
        let off = Pace { bytes_per_sec_min: 0, ..pace };
        assert_eq!(off.limit(0, Duration::ZERO), (off.whole, "front.body_timeout_secs"));
    }
}

//! Reads responses: bodies and streams of events. What is long takes the permits of its tenant, so that it
//! delays the calls of other tenants little.

use std::sync::Arc;

use budget::Held;
use bytes::Bytes;
use fairness::{
    Blocks, MessagePermits, SHORT_BYTES, TickPermit, compute, compute_for_bytes, is_long,
};
use http_body_util::BodyExt as _;
use hyper::body::Body;
use protocol::Message;
use protocol::sse::{Decoder, Event, TooLong};

use crate::Failure;
use crate::charge::Charge;
use crate::content;
use crate::exchange::{ExchangeEvent, HeaderText};

/// Most lines of a stream that are decoded at once.
const PART_LINES: usize = 256;

/// Reads a whole body of at most `bytes_max` bytes, which stay charged.
pub(crate) async fn whole(
    tenant: &Arc<str>,
    mut body: impl Body<Data = Bytes> + Unpin,
    bytes_max: usize,
    charge: &mut Charge,
) -> Result<Bytes, Failure> {
    // Nearly all bodies come in one piece, which is not copied.
    let (mut first, mut rest) = (Bytes::new(), Blocks::default());
    let mut permits = MessagePermits::default();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|_| Failure::Lost)?.into_data() else { continue };
        if first.len() + rest.len() + piece.len() > bytes_max {
            return Err(Failure::TooLarge);
        }
        charge.set(first.len() + rest.len() + piece.len()).await?;
        permits.next_piece(tenant, piece.len()).await;
        if first.is_empty() && rest.is_empty() {
            first = piece;
            continue;
        }
        rest.add(&std::mem::take(&mut first));
        rest.add(&piece);
    }
    Ok(if rest.is_empty() { first } else { rest.join(tenant).await })
}

/// Reads a body of at most `bytes_max` bytes, and keeps nothing of it.
pub(crate) async fn skip(
    tenant: &Arc<str>,
    mut body: impl Body<Data = Bytes> + Unpin,
    bytes_max: usize,
) -> Result<(), Failure> {
    let (mut bytes, mut permits) = (0, MessagePermits::default());
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|_| Failure::Lost)?.into_data() else { continue };
        bytes += piece.len();
        if bytes > bytes_max {
            return Err(Failure::TooLarge);
        }
        permits.next_piece(tenant, piece.len()).await;
    }
    Ok(())
}

/// The messages of a body. A long one is scanned on another thread.
pub(crate) async fn messages(tenant: &Arc<str>, body: Bytes) -> Result<Vec<Message>, Failure> {
    compute_for_bytes(tenant, body.len(), move || content::messages(body)).await
}

/// The length of the part of a piece that is decoded at once: each line takes about as long as 100 bytes.
fn part_length(piece: &[u8]) -> usize {
    let short = &piece[..piece.len().min(SHORT_BYTES)];
    memchr::memchr_iter(b'\n', short).nth(PART_LINES - 1).map_or(short.len(), |last| last + 1)
}

/// Decodes a stream of events.
pub(crate) struct EventReader<'a> {
    tenant: &'a Arc<str>,
    permits: MessagePermits,
    decoder: Decoder,
    /// What an event that is not complete is charged to.
    charge: Charge,
}

impl<'a> EventReader<'a> {
    /// A reader of events with at most `event_bytes_max` bytes.
    pub(crate) fn new(tenant: &'a Arc<str>, event_bytes_max: usize, charge: Charge) -> Self {
        let (permits, decoder) = (MessagePermits::default(), Decoder::new(event_bytes_max));
        Self { tenant, permits, decoder, charge }
    }

    /// The events that a piece of the stream completes. An error comes after the last of them.
    pub(crate) async fn feed(
        &mut self,
        piece: Bytes,
    ) -> Result<(Vec<Event>, Result<(), TooLong>), Failure> {
        self.charge.set(self.decoder.held_bytes() + piece.len()).await?;
        let (events, fed) = self.decode(piece).await;
        if events.is_empty() {
            // Comments, or a part of an event: it takes about as long as a short message.
            self.permits.next(self.tenant).await;
            self.permits.note_handled();
        }
        Ok((events, fed))
    }

    /// What is charged for an event of the last piece with so many bytes, which is sent on.
    pub(crate) fn hand_on(&mut self, bytes: usize) -> Option<Held> {
        self.charge.hand_on(bytes)
    }

    /// The events of the last piece are sent on: only what the decoder holds is still charged.
    pub(crate) fn note_sent(&mut self) {
        self.charge.lower(self.decoder.held_bytes());
    }

    async fn decode(&mut self, piece: Bytes) -> (Vec<Event>, Result<(), TooLong>) {
        let (mut events, mut rest) = (Vec::new(), piece);
        while !rest.is_empty() && !is_long(self.decoder.held_bytes()) {
            let length = part_length(&rest);
            if length < rest.len() {
                TickPermit::of(self.tenant).await;
            }
            let part = rest.split_to(length);
            if let Err(too_long) = self.decoder.feed(&part, &mut events) {
                return (events, Err(too_long));
            }
        }
        if rest.is_empty() {
            return (events, Ok(()));
        }
        TickPermit::for_bytes(self.tenant, rest.len()).await;
        // The end of a long line makes the decoder read all of it again.
        let mut decoder = std::mem::replace(&mut self.decoder, Decoder::new(0));
        let (decoder, events, fed) = compute(self.tenant, move || {
            let fed = decoder.feed(&rest, &mut events);
            (decoder, events, fed)
        })
        .await;
        self.decoder = decoder;
        (events, fed)
    }

    /// Waits for a permit if the next event needs one.
    pub(crate) async fn begin_event(&mut self) {
        self.permits.next(self.tenant).await;
        self.permits.note_handled();
    }

    /// The messages of an event that has begun. An event with another name, or whose data is no message, has none.
    pub(crate) async fn read(&mut self, event: Event) -> ExchangeEvent {
        let is_message = event.event.as_deref().is_none_or(|name| name == "message");
        let data = event.data.filter(|data| is_message && !data.is_empty());
        let messages = match data {
            None => None,
            Some(data) => messages(self.tenant, data.into()).await.ok(),
        };
        let messages = messages.unwrap_or_default();
        if messages.iter().any(|message| matches!(message, Message::Request(_))) {
            self.permits.note_answered();
        }
        ExchangeEvent::Event {
            messages,
            id: event.id.and_then(|id| HeaderText::parse(id.as_bytes())),
            retry_ms: event.retry,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;
    use std::rc::Rc;

    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tokio::task::{LocalSet, yield_now};

    use super::*;

    /// How many pieces of 64 streams are read in 1,000 ticks, if each stream has always one more.
    async fn pieces_read(piece: &'static str) -> usize {
        let (read, streams) = (Rc::new(Cell::new(0)), LocalSet::new());
        for _ in 0..64 {
            let read = Rc::clone(&read);
            streams.spawn_local(async move {
                let tenant = "a".into();
                let mut reader = EventReader::new(&tenant, 1 << 20, Charge::new(None));
                loop {
                    let (events, _) =
                        reader.feed(Bytes::from_static(piece.as_bytes())).await.unwrap();
                    for event in events {
                        reader.begin_event().await;
                        reader.read(event).await;
                    }
                    read.set(read.get() + 1);
                    yield_now().await;
                }
            });
        }
        streams
            .run_until(async {
                for _ in 0..1_000 {
                    yield_now().await;
                }
            })
            .await;
        read.get()
    }

    /// How many pieces of 64 bodies are read in 200 ticks, if each body has always one more until they have
    /// read 5,000 together.
    async fn pieces_of_bodies_read(piece: &'static [u8]) -> usize {
        let (read, bodies) = (Rc::new(Cell::new(0)), LocalSet::new());
        for _ in 0..64 {
            let read = Rc::clone(&read);
            bodies.spawn_local(async move {
                let next = || {
                    read.set(read.get() + 1);
                    (read.get() < 5_000).then(|| Frame::data(Bytes::from_static(piece)))
                };
                let pieces = stream::iter(std::iter::from_fn(next).map(Ok::<_, Infallible>));
                let (tenant, mut charge) = ("a".into(), Charge::new(None));
                whole(&tenant, StreamBody::new(pieces), usize::MAX, &mut charge).await.unwrap();
            });
        }
        let ticks = async {
            for _ in 0..200 {
                yield_now().await;
            }
        };
        bodies.run_until(ticks).await;
        read.get()
    }

    #[tokio::test]
    async fn a_body_in_short_pieces_needs_permits_as_well() {
        // The HTTP client reads a body without a length in pieces of 8 KiB.
        for (piece, per_permit) in
            [(&[b' '; SHORT_BYTES + 1][..], 1), (&[b' '; SHORT_BYTES], 8), (b" ", 8)]
        {
            let read = pieces_of_bodies_read(piece).await;
            // Of each body one more is read, which waits.
            let bounds = 100 * per_permit..=64 + (64 + 2 * 200) * per_permit;
            assert!(bounds.contains(&read), "{read} pieces of {} bytes", piece.len());
        }
    }

    #[tokio::test]
    async fn what_a_server_sends_needs_permits_as_it_takes_time() {
        let bounds = |per_permit: usize| 500 * per_permit..=(64 + 2 * 1_000) * per_permit;
        for (piece, per_permit) in [
            // A message of its own; one that the node answers with a request; none.
            ("data: {\"jsonrpc\":\"2.0\",\"method\":\"a\"}\n\n", 8),
            ("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\"}\n\n", 1),
            (":\n", 8),
            ("d", 8),
        ] {
            let read = pieces_read(piece).await;
            assert!(bounds(per_permit).contains(&read), "{read} times {piece:?}");
        }
    }

    #[test]
    fn a_part_has_few_bytes_and_few_lines() {
        let lines = |length: usize| "x".repeat(length - 1) + "\n";
        for (piece, expected) in [
            (lines(1).repeat(PART_LINES), PART_LINES),
            (lines(1).repeat(PART_LINES + 1), PART_LINES),
            (lines(3).repeat(100_000), 3 * PART_LINES),
            (lines(100_000), SHORT_BYTES),
            (lines(100).repeat(10), 1_000),
        ] {
            assert_eq!(part_length(piece.as_bytes()), expected, "{}", piece.len());
        }
    }
}

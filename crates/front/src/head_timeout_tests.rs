//! What a connection reads, run by run.

use std::task::Wake;

use super::*;

/// Gives these bytes, and takes what is written only if it is open.
#[derive(Debug)]
struct Fixture {
    bytes: Vec<u8>,
    is_open: bool,
}

impl AsyncRead for Fixture {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = self.bytes.len().min(into.remaining());
        if length == 0 {
            return Poll::Pending;
        }
        into.put_slice(&self.bytes[..length]);
        self.bytes.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Fixture {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_open { Poll::Ready(Ok(bytes.len())) } else { Poll::Pending }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Transport for Fixture {
    const HAS_HANDSHAKE: bool = false;

    fn write_last(&mut self, _: &[u8]) {}
}

#[derive(Default)]
struct Woken(std::sync::atomic::AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

struct Connection {
    timed: Timed<Fixture>,
    woken: Arc<Woken>,
}

impl Connection {
    fn new(bytes: &str) -> Self {
        let stream = Fixture { bytes: bytes.into(), is_open: true };
        let timed = Timed::new(stream, TIMEOUTS);
        Self { timed, woken: Arc::default() }
    }

    /// What is read in a run of the connection, until nothing can be read.
    fn run(&mut self) -> String {
        self.timed.heads.begin_run();
        let waker = Waker::from(Arc::clone(&self.woken));
        let (mut all, mut buffer) = (String::new(), [0; 8 << 10]);
        loop {
            let mut into = ReadBuf::new(&mut buffer);
            let polled =
                Pin::new(&mut self.timed).poll_read(&mut Context::from_waker(&waker), &mut into);
            if polled.is_pending() {
                return all;
            }
            assert!(!into.filled().is_empty(), "the end, after {all}");
            all.push_str(std::str::from_utf8(into.filled()).unwrap());
        }
    }

    /// Whether a read returns the end of the connection.
    fn has_ended(&mut self) -> bool {
        let mut buffer = [0; 8];
        let mut into = ReadBuf::new(&mut buffer);
        let mut context = Context::from_waker(Waker::noop());
        Pin::new(&mut self.timed).poll_read(&mut context, &mut into).is_ready()
            && into.filled().is_empty()
    }

    fn write(&mut self) -> Poll<io::Result<usize>> {
        let waker = Waker::from(Arc::clone(&self.woken));
        Pin::new(&mut self.timed).poll_write(&mut Context::from_waker(&waker), b"x")
    }

    fn is_woken(&self) -> bool {
        self.woken.0.swap(false, std::sync::atomic::Ordering::Relaxed)
    }
}

const TIMEOUTS: Timeouts =
    Timeouts { first_byte: Duration::from_secs(75), head: Duration::from_secs(10) };

/// A worker that is busy when the time ends sees the timer and the request in one run.
#[tokio::test(start_paused = true)]
async fn a_first_request_that_arrives_when_its_time_ends_is_served() {
    for is_sent in [true, false] {
        let mut connection = Connection::new("");
        assert_eq!(connection.run(), "");
        tokio::time::advance(TIMEOUTS.first_byte - Duration::from_millis(10)).await;
        assert_eq!(connection.run(), "");
        tokio::time::advance(Duration::from_millis(20)).await;
        if is_sent {
            connection.timed.stream.bytes = ONE.into();
            assert_eq!(connection.run(), ONE);
            assert!(!connection.timed.heads.is_closing());
        } else {
            assert!(connection.has_ended());
        }
    }
}

const ONE: &str = "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n";
const TWO: &str = "POST /2 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";

#[tokio::test]
async fn the_next_request_is_passed_on_when_the_one_before_is_answered() {
    let mut connection = Connection::new(&format!("{ONE}{TWO}{ONE}"));
    for (at, request) in [ONE, TWO, ONE].into_iter().enumerate() {
        assert_eq!(connection.run(), request, "{at}");
        connection.timed.heads.begin_request();
        assert!(!connection.timed.heads.is_ambiguous());
        assert_eq!(connection.run(), "", "{at}");
        connection.is_woken();
        connection.timed.heads.finish();
        assert_eq!(connection.is_woken(), at < 2, "{at}");
    }
}

#[tokio::test]
async fn no_request_is_passed_on_while_the_answer_before_it_is_not_taken() {
    let mut connection = Connection::new(&format!("{ONE}{TWO}"));
    assert_eq!(connection.run(), ONE);
    connection.timed.heads.begin_request();
    connection.timed.stream.is_open = false;
    assert!(connection.write().is_pending());
    connection.timed.heads.finish();
    assert_eq!(connection.run(), "");
    connection.timed.stream.is_open = true;
    connection.is_woken();
    assert!(connection.write().is_ready() && connection.is_woken());
    assert_eq!(connection.run(), TWO);
}

#[tokio::test]
async fn the_rest_of_a_body_is_passed_on_behind_its_answer_and_no_head_is_missed() {
    let mut connection = Connection::new(TWO.strip_suffix("bc").unwrap());
    connection.run();
    connection.timed.heads.begin_request();
    connection.timed.heads.finish();
    connection.timed.stream.bytes = format!("bc{ONE}{ONE}").into();
    assert_eq!(connection.run(), format!("bc{ONE}"));
    connection.timed.heads.begin_request();
    assert!(!connection.timed.heads.is_ambiguous());
}

#[tokio::test]
async fn a_request_that_begins_where_none_was_expected_is_ambiguous() {
    let connection = Connection::new("");
    connection.timed.heads.begin_request();
    assert!(connection.timed.heads.is_ambiguous());
}

#[tokio::test]
async fn a_run_reads_little_and_the_next_one_goes_on() {
    let body = "x".repeat(100_000);
    let head = format!("POST /2 HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut connection = Connection::new(&format!("{head}{body}"));
    assert_eq!(connection.run().len(), 32 << 10);
    assert!(connection.is_woken());
    connection.timed.heads.begin_request();
    assert_eq!(connection.run().len(), 32 << 10);
}

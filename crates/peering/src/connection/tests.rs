//! Connections between two ends in this process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use bytes::Bytes;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tick::Deferred;
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::*;
use crate::Tls;
use crate::frame::{Open, Reply};
use crate::socket::Socket;
use crate::tls::Trust;

const PATIENCE: Duration = Duration::from_secs(20);

const BUFFER_BYTES: u32 = 256 << 10;

const LONG: Heartbeat = Heartbeat { every: PATIENCE, pings: false, silence: PATIENCE };

/// Writes the frames that it is given, and counts the frames that it reads by sender.
struct TestHandler {
    outgoing_frames: Mutex<VecDeque<Kind>>,
    /// The number of the next frame that is expected from each sender.
    last_read: Mutex<Vec<u64>>,
    frames: AtomicUsize,
}

impl TestHandler {
    fn new(senders: usize) -> Self {
        let last_read = Mutex::new(vec![0; senders]);
        Self { outgoing_frames: Mutex::default(), last_read, frames: AtomicUsize::new(0) }
    }

    /// Enqueues the frame `number` of a sender, with a body of `bytes`.
    fn enqueue_frame(&self, sender: u32, number: u64, bytes: usize) {
        let byte = u8::try_from(number % 251).unwrap();
        let body = Bytes::from(vec![byte; bytes]);
        let open = Kind::Open(Open { id: number, window: sender, body, rest: 0 });
        self.outgoing_frames.lock().unwrap().push_back(open);
    }
}

impl FrameHandler for TestHandler {
    fn handle_frame(&self, kind: Kind) -> bool {
        let Kind::Open(Open { id, window, body, .. }) = kind else { return false };
        let mut last_read = self.last_read.lock().unwrap();
        let next = &mut last_read[window as usize];
        assert_eq!(*next, id, "sender {window}");
        *next += 1;
        assert!(body.iter().all(|byte| u64::from(*byte) == id % 251));
        self.frames.fetch_add(1, Ordering::SeqCst);
        true
    }

    fn write_frames(&self, out: &mut BytesMut, enough_bytes: usize) {
        let mut outgoing_frames = self.outgoing_frames.lock().unwrap();
        while out.len() < enough_bytes
            && let Some(kind) = outgoing_frames.pop_front()
        {
            kind.write_to(out);
        }
    }
}

/// A connection whose unread bytes are limited to about two such buffers.
async fn streams(buffer_bytes: u32) -> (TcpStream, TcpStream) {
    let socket = || {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(buffer_bytes).unwrap();
        socket.set_recv_buffer_size(buffer_bytes).unwrap();
        socket
    };
    let listening = socket();
    listening.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listening.listen(1).unwrap();
    let near = socket().connect(listener.local_addr().unwrap());
    let (near, far) = tokio::join!(near, listener.accept());
    (near.unwrap(), far.unwrap().0)
}

async fn connection(buffer_bytes: u32) -> (Socket, Socket) {
    let (near, far) = streams(buffer_bytes).await;
    (Socket::new(near).unwrap(), Socket::new(far).unwrap())
}

fn plain((near, far): (Socket, Socket)) -> (Wire, Wire) {
    (Wire::Plain(near), Wire::Plain(far))
}

async fn encrypted(sockets: (Socket, Socket)) -> (Wire, Wire) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "node");
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    let trust = Trust::of(&Tls { ca: issuer.pem(), certificate, key: key.serialize_pem() });
    encrypted_with(&trust.unwrap(), sockets).await
}

async fn encrypted_with(trust: &Trust, (near, far): (Socket, Socket)) -> (Wire, Wire) {
    let (near, far) = tokio::join!(trust.connect("127.0.0.1", near), trust.accept(far));
    (near.unwrap().0, far.unwrap().0)
}

/// Many threads send on one connection concurrently, more than its buffer takes. All frames arrive,
/// whole and in the order of each sender.
async fn check_all_frames_arrive((mut near, mut far): (Wire, Wire)) {
    const SENDERS: u32 = 4;
    const FRAMES: u64 = 2_000;
    let near_connection = Arc::new(PeerConnection::new(TestHandler::new(0), &near));
    let far_connection = Arc::new(PeerConnection::new(TestHandler::new(SENDERS as usize), &far));
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let connection = near_connection.clone();
            thread::spawn(move || {
                let writes: Arc<dyn Deferred> = connection.clone();
                Builder::new_current_thread().build().unwrap().block_on(async {
                    // The first thread has no ticks, so another thread writes its frames.
                    if sender > 0 {
                        tick::install();
                    }
                    for number in 0..FRAMES {
                        // Some frames are larger than one write of a connection.
                        let bytes = if number % 500 == 499 { 5 << 20 } else { 100 };
                        connection.handler().enqueue_frame(sender, number, bytes);
                        tick::defer(&writes);
                        if number % 3 == 0 {
                            tokio::task::yield_now().await;
                        }
                    }
                    tokio::task::yield_now().await;
                });
            })
        })
        .collect();
    let expected = SENDERS as usize * FRAMES as usize;
    let mut near_inbox = Inbox::new(6 << 20);
    let mut far_inbox = Inbox::new(6 << 20);
    let all_read = async {
        while far_connection.handler().frames.load(Ordering::SeqCst) < expected {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        ended = near_connection.run(&mut near, &mut near_inbox, LONG) => panic!("{ended}"),
        // The receiving end starts late.
        ended = async {
            sleep(Duration::from_millis(200)).await;
            far_connection.run(&mut far, &mut far_inbox, LONG).await
        } => panic!("{ended}"),
        last_read = timeout(PATIENCE, all_read) => last_read.unwrap(),
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    assert_eq!(*far_connection.handler().last_read.lock().unwrap(), vec![FRAMES; SENDERS as usize]);
}

#[tokio::test]
async fn all_frames_of_many_threads_arrive_over_a_plain_connection() {
    check_all_frames_arrive(plain(connection(BUFFER_BYTES).await)).await;
}

#[tokio::test]
async fn all_frames_of_many_threads_arrive_over_an_encrypted_connection() {
    check_all_frames_arrive(encrypted(connection(BUFFER_BYTES).await).await).await;
}

/// Sends so many frames to an end that starts to read only afterwards.
async fn check_frames_arrive_whole((mut near, mut far): (Wire, Wire), frames: u64) {
    let near_connection = PeerConnection::new(TestHandler::new(0), &near);
    let far_connection = PeerConnection::new(TestHandler::new(1), &far);
    (0..frames).for_each(|number| near_connection.handler().enqueue_frame(0, number, 4_000));
    let mut far_inbox = Inbox::new(5_000);
    // A task of its own, which only its connection wakes.
    let mut near_end = JoinSet::new();
    near_end.spawn(async move {
        near_connection.run(&mut near, &mut Inbox::new(5_000), LONG).await.to_string()
    });
    let last_read = async {
        while far_connection.handler().frames.load(Ordering::SeqCst)
            < usize::try_from(frames).unwrap()
        {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        ended = near_end.join_next() => panic!("{ended:?}"),
        ended = async {
            sleep(Duration::from_millis(5)).await;
            far_connection.run(&mut far, &mut far_inbox, LONG).await
        } => panic!("{ended}"),
        last_read = timeout(PATIENCE, last_read) => last_read.unwrap(),
    }
}

#[tokio::test]
async fn frames_written_before_the_buffer_is_full_arrive() {
    // From what the buffer takes at once to much more than that.
    for frames in 1..80 {
        check_frames_arrive_whole(plain(connection(8 << 10).await), frames).await;
        check_frames_arrive_whole(encrypted(connection(8 << 10).await).await, frames).await;
    }
}

#[tokio::test]
async fn one_thread_writes_at_a_time_and_collects_again_if_another_had_frames() {
    let (near, _far) = plain(connection(BUFFER_BYTES).await);
    let connection = PeerConnection::new(TestHandler::new(0), &near);
    let room = connection.begin_write().unwrap();
    assert!(connection.end_write(room).is_none());
    let room = connection.begin_write().unwrap();
    assert!(connection.begin_write().is_none());
    let room = connection.end_write(room).expect("another thread had frames meanwhile");
    assert!(connection.end_write(room).is_none());

    let mut bytes = connection.begin_write().unwrap();
    bytes.extend_from_slice(b"left");
    connection.stop_write(bytes, WriterState::Full);
    assert!(connection.begin_write().is_none(), "the socket has no room");
    connection.out().writer = WriterState::Free;
    assert_eq!(connection.begin_write().unwrap(), "left");
}

/// Runs one end until it ends; the test drives the other.
async fn run_until_end(wire: &mut Wire, heartbeat: Heartbeat) -> Ended {
    let connection = PeerConnection::new(TestHandler::new(1), wire);
    let mut inbox = Inbox::new(1_000);
    timeout(PATIENCE, connection.run(wire, &mut inbox, heartbeat)).await.expect("it should end")
}

#[tokio::test]
async fn a_silent_end_times_out_and_one_that_pings_does_not() {
    let silence = Duration::from_millis(300);
    let (mut near, mut far) = plain(connection(BUFFER_BYTES).await);
    let started = Instant::now();
    let callee = run_until_end(&mut far, Heartbeat { silence, ..LONG }).await;
    assert!(matches!(callee, Ended::Silent), "{callee}");
    assert!(started.elapsed() >= silence, "{:?}", started.elapsed());

    // The same callee, and a caller that sends pings. Neither sends other frames.
    drop((near, far));
    (near, far) = plain(connection(BUFFER_BYTES).await);
    let pings = Heartbeat { every: Duration::from_millis(100), pings: true, silence };
    let (caller, callee) = (
        PeerConnection::new(TestHandler::new(0), &near),
        PeerConnection::new(TestHandler::new(0), &far),
    );
    let (mut one, mut other) = (Inbox::new(100), Inbox::new(100));
    tokio::select! {
        ended = caller.run(&mut near, &mut one, pings) => panic!("{ended}"),
        ended = callee.run(&mut far, &mut other, Heartbeat { silence, ..LONG }) => panic!("{ended}"),
        () = sleep(Duration::from_secs(1)) => {}
    }
}

#[tokio::test]
async fn frames_that_arrived_while_this_process_was_suspended_are_read_before_the_timeout() {
    let silence = Duration::from_millis(100);
    let (near, mut far) = plain(connection(BUFFER_BYTES).await);
    let outgoing = near.outgoing();
    let pings = thread::spawn(move || {
        for _ in 0..30 {
            let mut ping = BytesMut::new();
            Kind::Ping(()).write_to(&mut ping);
            assert_ne!(outgoing.try_write(&ping).unwrap(), Written::Full);
            thread::sleep(Duration::from_millis(20));
        }
    });
    let stands_still = async {
        sleep(Duration::from_millis(50)).await;
        thread::sleep(Duration::from_millis(300));
        sleep(Duration::from_millis(50)).await;
    };
    tokio::select! {
        ended = run_until_end(&mut far, Heartbeat { silence, ..LONG }) => panic!("{ended}"),
        () = stands_still => {}
    }
    pings.join().unwrap();
    drop(near);
}

#[tokio::test]
async fn an_end_that_leaves_sends_goodbye_and_the_other_closes() {
    for (mut near, mut far) in
        [plain(connection(BUFFER_BYTES).await), encrypted(connection(BUFFER_BYTES).await).await]
    {
        let connection = PeerConnection::new(TestHandler::new(0), &near);
        connection.send_goodbye();
        let mut inbox = Inbox::new(100);
        let parts = connection.run(&mut near, &mut inbox, LONG);
        let closes = async {
            let ended = run_until_end(&mut far, LONG).await;
            assert!(matches!(ended, Ended::Goodbye), "{ended}");
            drop(far);
        };
        let (ended, ()) = tokio::join!(parts, closes);
        assert!(matches!(ended, Ended::Closed | Ended::Broken(_)), "{ended}");
    }
}

#[tokio::test]
async fn an_end_that_is_dropped_closes_the_connection_in_order() {
    for (near, mut far) in
        [plain(connection(BUFFER_BYTES).await), encrypted(connection(BUFFER_BYTES).await).await]
    {
        // Dropping closes the connection although a writer is left.
        let _outgoing = near.outgoing();
        drop(near);
        let ended = run_until_end(&mut far, LONG).await;
        assert!(matches!(ended, Ended::Closed | Ended::Broken(_)), "{ended}");
        assert!(far.orderly_end().was_seen());
    }
}

#[tokio::test]
async fn a_frame_that_no_node_sends_ends_the_connection() {
    let reply = Kind::Reply(Reply { id: 0, body: Bytes::new(), last: true, rest: 0 });
    let too_long =
        Kind::Open(Open { id: 0, window: 0, body: Bytes::from(vec![0; 1_001]), rest: 0 });
    for kind in [reply, too_long] {
        let (near, mut far) = plain(connection(BUFFER_BYTES).await);
        let mut sent = BytesMut::new();
        kind.write_to(&mut sent);
        near.outgoing().try_write(&sent).unwrap();
        let ended = run_until_end(&mut far, LONG).await;
        assert!(matches!(ended, Ended::Malformed), "{ended}");
    }
}

#[tokio::test]
async fn the_called_end_sends_pongs_while_a_long_message_arrives() {
    let (mut near, mut far) = plain(connection(BUFFER_BYTES).await);
    let mut long = BytesMut::new();
    Kind::Open(Open { id: 0, window: 0, body: Bytes::from(vec![0; 900]), rest: 0 })
        .write_to(&mut long);
    let outgoing = near.outgoing();
    let arrives = async {
        for byte in long.chunks(10) {
            outgoing.try_write(byte).unwrap();
            sleep(Duration::from_millis(10)).await;
        }
    };
    let mut inbox = Inbox::new(100);
    let mut pongs = 0;
    let read_pongs = async {
        loop {
            std::future::poll_fn(|context| inbox.poll_fill(&mut near, context)).await.unwrap();
            while let Some(frame) = inbox.next().unwrap() {
                assert_eq!(frame.kind, Some(Kind::Pong(())));
                pongs += 1;
            }
        }
    };
    let every = Duration::from_millis(100);
    let began = tokio::time::Instant::now();
    tokio::select! {
        ended = run_until_end(&mut far, Heartbeat { every, ..LONG }) => panic!("{ended}"),
        () = read_pongs => {}
        () = arrives => {}
    }
    // It took about 900 ms, or more on a busy machine.
    let due = began.elapsed().as_millis() / every.as_millis();
    assert!((3..=due + 3).contains(&pongs), "{pongs} of {due}");
}

/// Does `done` to the far end, writes at the near end, and returns the result of the next read
/// there.
async fn ended_after_a_write(done: impl FnOnce(TcpStream)) -> (io::Result<usize>, bool) {
    let (near, far) = streams(BUFFER_BYTES).await;
    let mut near = Wire::Plain(Socket::new(near).unwrap());
    let outgoing = near.outgoing();
    done(far);
    let failed = async {
        while outgoing.try_write(b"more").is_ok() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, failed).await.unwrap();
    let mut inbox = Inbox::new(100);
    let read = std::future::poll_fn(|context| inbox.poll_fill(&mut near, context)).await;
    (read, near.orderly_end().was_seen())
}

#[tokio::test]
async fn a_reset_is_no_orderly_end_although_a_writer_got_the_error_first() {
    let reset = |far: TcpStream| far.set_zero_linger().unwrap();
    let (read, closed) = ended_after_a_write(reset).await;
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert!(!closed);
    let (read, closed) = ended_after_a_write(drop).await;
    assert_eq!(read.unwrap(), 0);
    assert!(closed);
}

/// Frames that arrived before the end are handled, also if a write failed meanwhile.
#[tokio::test]
async fn frames_that_arrived_are_read_after_writing_has_failed() {
    for wires in
        [plain(connection(BUFFER_BYTES).await), encrypted(connection(BUFFER_BYTES).await).await]
    {
        const FRAMES: u64 = 1_000;
        let (mut near, mut far) = wires;
        let near_connection = PeerConnection::new(TestHandler::new(0), &near);
        (0..FRAMES).for_each(|number| near_connection.handler().enqueue_frame(0, number, 100));
        let mut inbox = Inbox::new(1_000);
        let sent =
            timeout(Duration::from_millis(100), near_connection.run(&mut near, &mut inbox, LONG));
        assert!(sent.await.is_err());
        drop(near);

        let far_connection = PeerConnection::new(TestHandler::new(1), &far);
        far_connection.out().writer = WriterState::Closed;
        let mut inbox = Inbox::new(1_000);
        far_connection.run(&mut far, &mut inbox, LONG).await;
        assert_eq!(*far_connection.handler().last_read.lock().unwrap(), [FRAMES]);
        assert!(far.orderly_end().was_seen());
    }
}

#[tokio::test]
async fn a_connection_whose_handler_panics_ends() {
    struct Panics;

    impl FrameHandler for Panics {
        fn handle_frame(&self, _: Kind) -> bool {
            true
        }

        fn write_frames(&self, _: &mut BytesMut, _: usize) {
            panic!("on purpose");
        }
    }

    let (mut near, _far) = plain(connection(BUFFER_BYTES).await);
    let connection = Arc::new(PeerConnection::new(Panics, &near));
    let another = connection.clone();
    thread::spawn(move || another.perform()).join().unwrap_err();
    let mut inbox = Inbox::new(100);
    let ended = timeout(PATIENCE, connection.run(&mut near, &mut inbox, LONG)).await.unwrap();
    assert!(matches!(ended, Ended::Broken(_)), "{ended}");
}

#[tokio::test]
async fn a_large_write_buffer_is_not_kept() {
    let (near, _far) = plain(connection(BUFFER_BYTES).await);
    let connection = PeerConnection::new(TestHandler::new(0), &near);
    for (bytes, kept) in [(1_000, true), (KEPT_BYTES + 1, false)] {
        let mut room = connection.begin_write().unwrap();
        room.reserve(bytes);
        room.extend_from_slice(&vec![0; bytes]);
        room.advance(bytes);
        assert!(connection.end_write(room).is_none());
        assert_eq!(connection.out().unwritten.try_reclaim(1_000), kept, "{bytes}");
    }
}

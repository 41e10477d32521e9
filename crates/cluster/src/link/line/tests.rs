//! Lines between two ends of this process.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use bytes::Bytes;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::net::TcpSocket;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::*;
use crate::Tls;
use crate::bell;
use crate::link::frame::{Open, Reply};
use crate::link::tls::{Trust, meet};
use crate::link::wire::Socket;

const PATIENCE: Duration = Duration::from_secs(20);

const BUFFER_BYTES: u32 = 256 << 10;

const LONG: Beat = Beat { ping: None, silence: PATIENCE };

/// Says what it is given, and counts what it hears by who said it.
struct Talker {
    to_say: Mutex<VecDeque<Kind>>,
    /// The next that each of these should be heard to say.
    heard: Mutex<Vec<u64>>,
    frames: AtomicUsize,
}

impl Talker {
    fn new(speakers: usize) -> Self {
        let heard = Mutex::new(vec![0; speakers]);
        Self { to_say: Mutex::default(), heard, frames: AtomicUsize::new(0) }
    }

    /// The `number`th word of a speaker, as long as it is told to be.
    fn word(&self, speaker: u32, number: u64, bytes: usize) {
        let byte = u8::try_from(number % 251).unwrap();
        let body = Bytes::from(vec![byte; bytes]);
        let open = Kind::Open(Open { id: number, window: speaker, body });
        self.to_say.lock().unwrap().push_back(open);
    }
}

impl Party for Talker {
    fn take(&self, kind: Kind) -> bool {
        let Kind::Open(Open { id, window, body }) = kind else { return false };
        let mut heard = self.heard.lock().unwrap();
        let next = &mut heard[window as usize];
        assert_eq!(*next, id, "speaker {window}");
        *next += 1;
        assert!(body.iter().all(|byte| u64::from(*byte) == id % 251));
        self.frames.fetch_add(1, Ordering::SeqCst);
        true
    }

    fn say(&self, out: &mut BytesMut, enough_bytes: usize) {
        let mut to_say = self.to_say.lock().unwrap();
        while out.len() < enough_bytes
            && let Some(kind) = to_say.pop_front()
        {
            kind.say(out);
        }
    }
}

/// A connection that takes about as much before it is read as two such buffers hold.
async fn connection(buffer_bytes: u32) -> (Socket, Socket) {
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
    (Socket::new(near.unwrap()).unwrap(), Socket::new(far.unwrap().0).unwrap())
}

fn plain((near, far): (Socket, Socket)) -> (Wire, Wire) {
    (Wire::Plain(near), Wire::Plain(far))
}

async fn encrypted((near, far): (Socket, Socket)) -> (Wire, Wire) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "node");
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    let trust = Trust::of(&Tls { ca: issuer.pem(), certificate, key: key.serialize_pem() });
    let trust = trust.unwrap();
    let connector = trust.connector();
    let (near, far) = tokio::join!(meet(&connector, "127.0.0.1", near), trust.accept(far));
    (Wire::Tls(Box::new(near.unwrap())), Wire::Tls(Box::new(far.unwrap().into())))
}

/// Many threads say much on one line at once, more than the connection takes; all of it is
/// heard, whole and in each one's order.
async fn everybody_is_heard((mut near, mut far): (Wire, Wire)) {
    const SPEAKERS: u32 = 4;
    const WORDS: u64 = 2_000;
    let near_line = Arc::new(Line::new(Talker::new(0), &near));
    let far_line = Arc::new(Line::new(Talker::new(SPEAKERS as usize), &far));
    let speakers: Vec<_> = (0..SPEAKERS)
        .map(|speaker| {
            let line = near_line.clone();
            thread::spawn(move || {
                let speaks: Arc<dyn Speaks> = line.clone();
                Builder::new_current_thread().build().unwrap().block_on(async {
                    // One of them has no bell, and so has another speak.
                    if speaker > 0 {
                        bell::hang();
                    }
                    for number in 0..WORDS {
                        // Some are larger than a connection takes at once.
                        let bytes = if number % 500 == 499 { 5 << 20 } else { 100 };
                        line.party().word(speaker, number, bytes);
                        bell::ring_for(&speaks);
                        if number % 3 == 0 {
                            tokio::task::yield_now().await;
                        }
                    }
                    tokio::task::yield_now().await;
                });
            })
        })
        .collect();
    let expected = SPEAKERS as usize * WORDS as usize;
    let mut near_inbox = Inbox::new(6 << 20);
    let mut far_inbox = Inbox::new(6 << 20);
    let all_heard = async {
        while far_line.party().frames.load(Ordering::SeqCst) < expected {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        ended = near_line.run(&mut near, &mut near_inbox, LONG) => panic!("{ended}"),
        // Who hears begins late.
        ended = async {
            sleep(Duration::from_millis(200)).await;
            far_line.run(&mut far, &mut far_inbox, LONG).await
        } => panic!("{ended}"),
        heard = timeout(PATIENCE, all_heard) => heard.unwrap(),
    }
    speakers.into_iter().for_each(|speaker| speaker.join().unwrap());
    assert_eq!(*far_line.party().heard.lock().unwrap(), vec![WORDS; SPEAKERS as usize]);
}

#[tokio::test]
async fn everybody_is_heard_in_the_clear() {
    everybody_is_heard(plain(connection(BUFFER_BYTES).await)).await;
}

#[tokio::test]
async fn everybody_is_heard_where_it_is_encrypted() {
    everybody_is_heard(encrypted(connection(BUFFER_BYTES).await).await).await;
}

/// Says so much, and nothing after it, to an end that listens only then.
async fn is_heard_whole((mut near, mut far): (Wire, Wire), words: u64) {
    let near_line = Line::new(Talker::new(0), &near);
    let far_line = Line::new(Talker::new(1), &far);
    (0..words).for_each(|number| near_line.party().word(0, number, 4_000));
    let mut far_inbox = Inbox::new(5_000);
    // A task of its own, which nothing wakes but its line.
    let mut near_end = JoinSet::new();
    near_end.spawn(async move {
        near_line.run(&mut near, &mut Inbox::new(5_000), LONG).await.to_string()
    });
    let heard = async {
        while far_line.party().frames.load(Ordering::SeqCst) < usize::try_from(words).unwrap() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        ended = near_end.join_next() => panic!("{ended:?}"),
        ended = async {
            sleep(Duration::from_millis(5)).await;
            far_line.run(&mut far, &mut far_inbox, LONG).await
        } => panic!("{ended}"),
        heard = timeout(PATIENCE, heard) => heard.unwrap(),
    }
}

#[tokio::test]
async fn whatever_is_said_before_there_is_no_room_is_heard() {
    // From what the connection takes at once to much more than that.
    for words in 1..80 {
        is_heard_whole(plain(connection(8 << 10).await), words).await;
        is_heard_whole(encrypted(connection(8 << 10).await).await, words).await;
    }
}

#[tokio::test]
async fn one_writes_at_a_time_and_looks_again_for_who_came_meanwhile() {
    let (near, _far) = plain(connection(BUFFER_BYTES).await);
    let line = Line::new(Talker::new(0), &near);
    let room = line.begin().unwrap();
    assert!(line.end(room).is_none());
    let room = line.begin().unwrap();
    assert!(line.begin().is_none());
    let room = line.end(room).expect("somebody came meanwhile");
    assert!(line.end(room).is_none());

    let mut bytes = line.begin().unwrap();
    bytes.extend_from_slice(b"left");
    line.stop(bytes, true);
    assert!(line.begin().is_none(), "there is no room");
    line.out().is_stuck = false;
    assert_eq!(line.begin().unwrap(), "left");
}

/// Runs one end, and leaves the other to the test.
async fn ended(wire: &mut Wire, beat: Beat) -> Ended {
    let line = Line::new(Talker::new(1), wire);
    let mut inbox = Inbox::new(1_000);
    timeout(PATIENCE, line.run(wire, &mut inbox, beat)).await.expect("it should end")
}

#[tokio::test]
async fn who_is_silent_is_gone_and_who_pings_is_not() {
    let silence = Duration::from_millis(300);
    let (mut near, mut far) = plain(connection(BUFFER_BYTES).await);
    let started = Instant::now();
    let callee = ended(&mut far, Beat { ping: None, silence }).await;
    assert!(matches!(callee, Ended::Silent), "{callee}");
    assert!(started.elapsed() >= silence, "{:?}", started.elapsed());

    // The same callee, and a caller that pings: neither has anything to say.
    drop((near, far));
    (near, far) = plain(connection(BUFFER_BYTES).await);
    let ping = Some(Duration::from_millis(100));
    let (caller, callee) = (Line::new(Talker::new(0), &near), Line::new(Talker::new(0), &far));
    let (mut one, mut other) = (Inbox::new(100), Inbox::new(100));
    tokio::select! {
        ended = caller.run(&mut near, &mut one, Beat { ping, silence }) => panic!("{ended}"),
        ended = callee.run(&mut far, &mut other, Beat { ping: None, silence }) => panic!("{ended}"),
        () = sleep(Duration::from_secs(1)) => {}
    }
}

#[tokio::test]
async fn what_arrived_while_this_process_stood_still_is_heard_first() {
    let silence = Duration::from_millis(100);
    let (near, mut far) = plain(connection(BUFFER_BYTES).await);
    let outgoing = near.outgoing().unwrap();
    let pings = thread::spawn(move || {
        for _ in 0..30 {
            let mut ping = BytesMut::new();
            Kind::Ping(()).say(&mut ping);
            outgoing.try_write(&ping).unwrap();
            thread::sleep(Duration::from_millis(20));
        }
    });
    let stands_still = async {
        sleep(Duration::from_millis(50)).await;
        thread::sleep(Duration::from_millis(300));
        sleep(Duration::from_millis(50)).await;
    };
    tokio::select! {
        ended = ended(&mut far, Beat { ping: None, silence }) => panic!("{ended}"),
        () = stands_still => {}
    }
    pings.join().unwrap();
    drop(near);
}

#[tokio::test]
async fn who_parts_says_so_and_leaves_the_end_to_the_other() {
    for (mut near, mut far) in
        [plain(connection(BUFFER_BYTES).await), encrypted(connection(BUFFER_BYTES).await).await]
    {
        let line = Line::new(Talker::new(0), &near);
        line.part();
        let mut inbox = Inbox::new(100);
        let parts = line.run(&mut near, &mut inbox, LONG);
        let closes = async {
            let ended = ended(&mut far, LONG).await;
            assert!(matches!(ended, Ended::Parted), "{ended}");
            drop(far);
        };
        let (ended, ()) = tokio::join!(parts, closes);
        assert!(matches!(ended, Ended::Closed | Ended::Broken(_)), "{ended}");
    }
}

#[tokio::test]
async fn who_is_gone_without_a_word_closed_the_line() {
    for (near, mut far) in
        [plain(connection(BUFFER_BYTES).await), encrypted(connection(BUFFER_BYTES).await).await]
    {
        // Even though another could still write.
        let _outgoing = near.outgoing();
        drop(near);
        let ended = ended(&mut far, LONG).await;
        assert!(matches!(ended, Ended::Closed | Ended::Broken(_)), "{ended}");
        assert!(far.fate().was_closed());
    }
}

#[tokio::test]
async fn what_no_node_says_ends_a_line() {
    let reply = Kind::Reply(Reply { id: 0, body: Bytes::new(), last: true });
    let too_long = Kind::Open(Open { id: 0, window: 0, body: Bytes::from(vec![0; 1_001]) });
    for kind in [reply, too_long] {
        let (near, mut far) = plain(connection(BUFFER_BYTES).await);
        let mut said = BytesMut::new();
        kind.say(&mut said);
        near.outgoing().unwrap().try_write(&said).unwrap();
        let ended = ended(&mut far, LONG).await;
        assert!(matches!(ended, Ended::Strange), "{ended}");
    }
}

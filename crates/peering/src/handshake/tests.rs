//! Handshakes of two nodes with an attacker between them, and with a peer of an older program.
//!
//! All nodes are on loopback, so `encrypts_loopback` stands for addresses beyond it.

use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::socket::Socket;
use crate::{ConnectError, Credentials, Established, Listener, LocalNode, Trust};

const PATIENCE: Duration = Duration::from_secs(20);

const SECRET: &str = "a secret of these tests, long enough";

const VERSIONS: Versions = Versions { oldest: 2, newest: 3 };

/// Settings of a node that differ between tests.
#[derive(Clone, Copy)]
struct Rules {
    encrypts_loopback: bool,
    accepts_plain: bool,
}

const STRICT: Rules = Rules { encrypts_loopback: true, accepts_plain: false };
const UPGRADES: Rules = Rules { encrypts_loopback: true, accepts_plain: true };
const LOOPBACK: Rules = Rules { encrypts_loopback: false, accepts_plain: true };

fn node(incarnation: u64, address: &str, rules: Rules) -> LocalNode {
    let Rules { encrypts_loopback, accepts_plain } = rules;
    let trust = Trust::with_process_key().unwrap();
    let secret = SECRET.to_owned();
    LocalNode {
        incarnation,
        address: address.into(),
        ping_ms: 300,
        pong_ms: 600,
        versions: VERSIONS,
        credentials: Some(Credentials { secret, trust, encrypts_loopback, accepts_plain }),
    }
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Starts a node that announces this address. The task returns the first connection that it
/// authenticates.
async fn callee(announced: Option<&str>, rules: Rules) -> (String, JoinHandle<Established>) {
    let (sockets, address) = listen().await;
    let local = node(2, announced.unwrap_or(&address), rules);
    let met = tokio::spawn(async move {
        let listener = Arc::new(Listener::default());
        loop {
            let (stream, from) = sockets.accept().await.unwrap();
            if let Some(met) = listener.accept(stream, from).meet(&local, PATIENCE).await {
                return met;
            }
        }
    });
    (address, met)
}

/// Connects, from a node at another address.
async fn connect(address: &str, rules: Rules) -> Result<Established, ConnectError> {
    let caller = node(1, "127.0.0.1:1", rules);
    timeout(PATIENCE, caller.connect(address, Purpose::Calls)).await.expect("it should end")
}

/// Connects to a callee that an attacker is in front of, and expects a refusal by both ends.
async fn check_refused(rules: Rules, attack: impl AsyncFn(TcpStream, TcpStream), why: &str) {
    let (sockets, address) = listen().await;
    let (far, met) = callee(Some(&address), rules).await;
    let attacks = async move {
        loop {
            let (near, _) = sockets.accept().await.unwrap();
            attack(near, TcpStream::connect(&far).await.unwrap()).await;
        }
    };
    let refused = tokio::select! {
        connected = connect(&address, rules) => connected.err().expect("it should be refused"),
        () = attacks => unreachable!("it does not end"),
    };
    assert!(refused.to_string().contains(why), "{refused}");
    assert!(!met.is_finished(), "the callee has accepted a connection");
    met.abort();
}

#[tokio::test]
async fn nodes_encrypt_beyond_loopback_and_not_on_it() {
    for (rules, is_encrypted) in [(STRICT, true), (UPGRADES, true), (LOOPBACK, false)] {
        let (sockets, address) = listen().await;
        let (far, met) = callee(Some(&address), rules).await;
        let first = tokio::spawn(async move {
            let (mut near, _) = sockets.accept().await.unwrap();
            let mut first = [0];
            near.peek(&mut first).await.unwrap();
            let mut far = TcpStream::connect(far).await.unwrap();
            let _ = copy_bidirectional(&mut near, &mut far).await;
            first[0]
        });
        let connected = connect(&address, rules).await.unwrap();
        assert_eq!(connected.peer().incarnation, 2);
        let met = timeout(PATIENCE, met).await.unwrap().unwrap();
        assert_eq!(met.peer().incarnation, 1);
        drop((connected, met));
        assert_eq!(timeout(PATIENCE, first).await.unwrap().unwrap() == 0x16, is_encrypted);
    }
}

#[tokio::test]
async fn a_man_in_the_middle_that_terminates_tls_at_both_ends_is_refused() {
    let attack = async |near, far| {
        let trust = Trust::with_process_key().unwrap();
        let (near, _) = trust.accept(Socket::new(near).unwrap()).await.unwrap();
        let (far, _) = trust.connect("127.0.0.1", Socket::new(far).unwrap()).await.unwrap();
        let (mut near, mut far) = (near, far);
        let _ = copy_bidirectional(&mut near, &mut far).await;
    };
    check_refused(STRICT, attack, "the peer refused this node's proof").await;
}

/// Relays a connection without TLS, and ends one with TLS as an older program does.
async fn drop_tls(mut near: TcpStream, mut far: TcpStream) {
    let mut first = [0];
    near.peek(&mut first).await.unwrap();
    if first[0] != 0x16 {
        let _ = copy_bidirectional(&mut near, &mut far).await;
    }
}

#[tokio::test]
async fn an_attacker_that_drops_the_client_hello_gets_no_plain_connection() {
    check_refused(UPGRADES, drop_tls, "the peer knows encrypted links").await;
    check_refused(STRICT, drop_tls, "").await;
}

#[tokio::test]
async fn an_attacker_that_rewrites_the_client_hello_gets_no_connection() {
    let attack = async |mut near: TcpStream, mut far: TcpStream| {
        let mut hello = [0; 64];
        near.read_exact(&mut hello).await.unwrap();
        hello[20] ^= 1;
        far.write_all(&hello).await.unwrap();
        let _ = copy_bidirectional(&mut near, &mut far).await;
    };
    check_refused(UPGRADES, attack, "").await;
}

#[tokio::test]
async fn an_attacker_that_makes_two_nodes_look_old_gets_no_connection() {
    for strips in [[true, true], [true, false], [false, true]] {
        let attack = async move |near: TcpStream, far: TcpStream| {
            let mut first = [0];
            near.peek(&mut first).await.unwrap();
            if first[0] == 0x16 {
                return;
            }
            let open = |stream| (Wire::Plain(Socket::new(stream).unwrap()), Inbox::new(512));
            let ((mut near, mut near_inbox), (mut far, mut far_inbox)) = (open(near), open(far));
            let stripped = |mut greeting: Greeting, strip: bool| {
                if strip {
                    greeting.nonce = greeting.nonce.iter().map(|byte| byte ^ 1).collect();
                }
                greeting
            };
            let Kind::Hello(hello) = receive(&mut near, &mut near_inbox).await.unwrap() else {
                panic!("not a hello");
            };
            send(&mut far, Kind::Hello(stripped(hello, strips[0]))).await.unwrap();
            let Kind::Challenge(callee) = receive(&mut far, &mut far_inbox).await.unwrap() else {
                panic!("not a challenge");
            };
            send(&mut near, Kind::Challenge(stripped(callee, strips[1]))).await.unwrap();
            let _ = copy_bidirectional(&mut near, &mut far).await;
        };
        check_refused(UPGRADES, attack, "").await;
    }
}

/// A greeting of a program that does not know the proof over TLS.
fn old_greeting(incarnation: u64, address: &str) -> Greeting {
    Greeting {
        incarnation,
        nonce: Bytes::from_static(b"sixteen bytes, 1"),
        ping_ms: 300,
        address: address.to_owned(),
        watches: false,
        oldest_version: 2,
        newest_version: 3,
    }
}

/// The calling end of an older program. Returns whether it was connected.
async fn old_caller(address: &str) -> bool {
    let socket = Socket::new(TcpStream::connect(address).await.unwrap()).unwrap();
    let (mut wire, mut inbox) = (Wire::Plain(socket), Inbox::new(FRAME_BYTES_MAX));
    let caller = old_greeting(1, "127.0.0.1:1");
    send(&mut wire, Kind::Hello(caller.clone())).await.unwrap();
    let Ok(Kind::Challenge(callee)) = receive(&mut wire, &mut inbox).await else { return false };
    let protection = &Protection::Plain;
    let transcript = Transcript { caller: &caller, callee: &callee, protection };
    let proof = transcript.prove(SECRET, Role::Caller);
    if send(&mut wire, Kind::Proof(proof)).await.is_err() {
        return false;
    }
    match receive(&mut wire, &mut inbox).await {
        Ok(Kind::Welcome(proof)) => transcript.holds(&proof, SECRET, Role::Callee),
        _ => false,
    }
}

/// The called end of an older program. Counts the connections that begin with anything else than a
/// frame, and closes them.
async fn old_callee(sockets: TcpListener, address: String, closed: Arc<Mutex<u32>>) {
    loop {
        let (stream, _) = sockets.accept().await.unwrap();
        let (mut wire, mut inbox) =
            (Wire::Plain(Socket::new(stream).unwrap()), Inbox::new(FRAME_BYTES_MAX));
        let Ok(Kind::Hello(caller)) = receive(&mut wire, &mut inbox).await else {
            *closed.lock().unwrap() += 1;
            continue;
        };
        let callee = old_greeting(2, &address);
        send(&mut wire, Kind::Challenge(callee.clone())).await.unwrap();
        let Ok(Kind::Proof(proof)) = receive(&mut wire, &mut inbox).await else { continue };
        let protection = &Protection::Plain;
        let transcript = Transcript { caller: &caller, callee: &callee, protection };
        assert!(transcript.holds(&proof, SECRET, Role::Caller));
        send(&mut wire, Kind::Welcome(transcript.prove(SECRET, Role::Callee))).await.unwrap();
    }
}

#[tokio::test]
async fn a_caller_of_an_older_program_is_accepted_until_that_is_switched_off() {
    for (rules, is_accepted) in [(UPGRADES, true), (STRICT, false), (LOOPBACK, true)] {
        let (address, met) = callee(None, rules).await;
        assert_eq!(old_caller(&address).await, is_accepted);
        if is_accepted {
            assert_eq!(timeout(PATIENCE, met).await.unwrap().unwrap().peer().incarnation, 1);
        } else {
            assert!(!met.is_finished());
        }
    }
}

#[tokio::test]
async fn a_callee_of_an_older_program_is_connected_to_until_that_is_switched_off() {
    for (rules, is_connected, tls_attempts) in
        [(UPGRADES, true, 1), (STRICT, false, 1), (LOOPBACK, true, 0)]
    {
        let (sockets, address) = listen().await;
        let closed = Arc::new(Mutex::new(0));
        let callee = tokio::spawn(old_callee(sockets, address.clone(), closed.clone()));
        let connected = connect(&address, rules).await;
        assert_eq!(connected.is_ok(), is_connected);
        assert_eq!(*closed.lock().unwrap(), tls_attempts);
        callee.abort();
    }
}

/// The resolver of the system reads `127.1` as an address; for TLS it is no name.
#[tokio::test]
async fn a_host_need_not_be_a_name_for_tls() {
    let (address, met) = callee(None, LOOPBACK).await;
    let address = address.replace("127.0.0.1", "127.1");
    let strict = Rules { accepts_plain: false, ..LOOPBACK };
    let connected = connect(&address, strict).await.map(drop);
    connected.unwrap();
    assert_eq!(timeout(PATIENCE, met).await.unwrap().unwrap().peer().incarnation, 1);
}

#[tokio::test]
async fn a_peer_with_another_secret_is_refused_over_tls() {
    let (address, met) = callee(None, STRICT).await;
    let mut caller = node(1, "127.0.0.1:1", STRICT);
    caller.credentials.as_mut().unwrap().secret = "another secret, which is as long".to_owned();
    let refused = timeout(PATIENCE, caller.connect(&address, Purpose::Calls)).await.unwrap();
    let refused = refused.err().expect("it should be refused").to_string();
    assert!(refused.contains("cluster.secret"), "{refused}");
    assert!(!met.is_finished());
}

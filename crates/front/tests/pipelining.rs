//! Clients that send many requests ahead of the one that is served. A separate program, since one test measures
//! the time that its process computes.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "made for all tests of this crate")]
mod kit;

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::kit::session::Session;
use crate::kit::{POLITE, Wire, node, parrot, request};

/// The time that this process has computed, in hundredths of a second.
fn computed() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // User and system time are the fields 14 and 15; the second one may have blanks, and ends with a bracket.
    let fields = stat.rsplit_once(") ").unwrap().1.split(' ').skip(11).take(2);
    fields.map(|field| field.parse::<u64>().unwrap()).sum()
}

#[actix_rt::test]
async fn requests_ahead_of_a_stream_cost_little_until_it_ends() {
    let node = node(parrot::backends(), |settings| settings.head_timeout_secs = 1);
    let session = Session::begin(&node.running, "2025-11-25").await;
    let headers = format!("{POLITE}Mcp-Session-Id: {}\r\n", session.id);
    let mut wire = Wire::open(&node.running).await;
    wire.send(request("GET /demo/mcp", &headers, "")).await;
    wire.0.readable().await.unwrap();
    // More than the buffer of the HTTP layer takes.
    let ahead =
        request("GET /nowhere", &format!("X-Long: {}\r\n", "x".repeat(4_000)), "").repeat(256);
    // The kernel takes what the node does not read.
    let sent = wire.send(&ahead.as_bytes()[..512 << 10]);
    tokio::time::timeout(Duration::from_secs(10), sent).await.expect("the kernel takes less");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = computed();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let hundredths = computed() - before;
    assert!(hundredths < 30, "{hundredths} % of a core");
    // When the stream ends, the next requests are answered. The last one is not whole.
    assert_eq!(session.delete().await.status(), 204);
    let read = wire.receive_until_close().await;
    assert!(read.starts_with("HTTP/1.1 200"), "{read}");
    let answered = read.matches("HTTP/1.1 404").count();
    assert!((50..256).contains(&answered), "{answered}: {read}");
    assert!(read.contains("HTTP/1.1 408"), "{read}");
}

/// Requests with bodies of such lengths, of which every third one has chunks, and the last one asks for the end of
/// the connection.
fn pings(session: &Session, count: usize, lengths: &[usize]) -> String {
    let ping = |number: usize| {
        let pad = "x".repeat(lengths[number % lengths.len()]);
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{number},"method":"ping","params":{{"_meta":{{"pad":"{pad}"}}}}}}"#
        );
        let close = if number + 1 == count { "Connection: close\r\n" } else { "" };
        let headers = format!("{POLITE}{close}Mcp-Session-Id: {}\r\n", session.id);
        if number % 3 < 2 {
            return request("POST /demo/mcp", &headers, &body);
        }
        let head = format!("{headers}Transfer-Encoding: chunked\r\n");
        let (first, second) = body.split_at(7);
        let chunks = format!("7;x=y\r\n{first}\r\n{:X}\r\n{second}\r\n0\r\n\r\n", second.len());
        request("POST /demo/mcp", &head, "") + &chunks
    };
    (0..count).map(ping).collect()
}

#[actix_rt::test]
async fn requests_ahead_are_answered_in_order_and_the_connection_stays_open() {
    let node = node(parrot::backends(), |_| {});
    let session = Session::begin(&node.running, "2025-11-25").await;
    // However they are cut into pieces. The HTTP layer would announce the end of the connection in each answer
    // while a part of a later body has arrived.
    for (count, lengths, cut) in [
        (9, &[0, 30][..], 1),
        (40, &[0, 300, 0], 7),
        (40, &[0, 3_000, 100, 9_000, 70_000], 700),
        (40, &[0, 3_000, 100, 9_000, 70_000], 5_000),
        (40, &[70_000, 0, 0, 0, 0, 0, 0, 0, 0, 300], usize::MAX),
        (2_000, &[0], usize::MAX),
    ] {
        let sent = pings(&session, count, lengths);
        let (mut from, mut to) = Wire::open(&node.running).await.0.into_split();
        let write = async {
            for piece in sent.as_bytes().chunks(cut) {
                to.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let mut read = String::new();
        let both = async { tokio::join!(write, from.read_to_string(&mut read)).1.unwrap() };
        tokio::time::timeout(Duration::from_secs(20), both).await.expect("no end");
        let ids: Vec<_> =
            read.split("\"id\":").skip(1).map(|rest| rest.split(',').next()).collect();
        let expected: Vec<_> = (0..count).map(|id| id.to_string()).collect();
        let expected: Vec<_> = expected.iter().map(|id| Some(&**id)).collect();
        assert_eq!(ids, expected, "cut at {cut}: {read}");
        assert_eq!(read.matches("HTTP/1.1 200").count(), count);
        assert_eq!(read.matches("connection: close").count(), 1, "cut at {cut}: {read}");
    }
}

#[actix_rt::test]
async fn refused_requests_ahead_do_not_delay_the_request_of_another_client() {
    let node = node(parrot::backends(), |settings| settings.workers = 1);
    let mut other = Wire::open(&node.running).await;
    other.send(request("GET /elsewhere", "", "")).await;
    assert_eq!(other.receive().await.status, 404);
    let mut least = usize::MAX;
    // Another thread may keep the core from this one meanwhile.
    for _ in 0..10 {
        let (from, mut to) = Wire::open(&node.running).await.0.into_split();
        let ahead = request("GET /nowhere", "", "").repeat(2_000);
        let flood = async { to.write_all(ahead.as_bytes()).await.unwrap() };
        let asked = async {
            other.send(request("GET /elsewhere", "", "")).await;
            assert_eq!(other.receive().await.status, 404);
            let mut read = vec![0; 1 << 20];
            let count = from.try_read(&mut read).unwrap_or_default();
            least =
                least.min(String::from_utf8_lossy(&read[..count]).matches("HTTP/1.1 404").count());
        };
        tokio::join!(flood, asked);
    }
    assert!(least < 150, "{least} were answered before");
}

/// A part of the next request arrives with the end of a chunked body, and the rest later.
#[actix_rt::test]
async fn a_request_behind_a_chunked_body_may_be_cut_anywhere() {
    let node = node(parrot::backends(), |_| {});
    let session = Session::begin(&node.running, "2025-11-25").await;
    let requests = pings(&session, 4, &[0]);
    // The third request has chunks.
    let begin = requests.rfind("POST").unwrap();
    for cut in begin - 30..requests.len() {
        let (mut from, mut to) = Wire::open(&node.running).await.0.into_split();
        let mut read = String::new();
        let both = async {
            tokio::join!(
                async {
                    to.write_all(&requests.as_bytes()[..cut]).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    to.write_all(&requests.as_bytes()[cut..]).await.unwrap();
                },
                from.read_to_string(&mut read)
            )
        };
        tokio::time::timeout(Duration::from_secs(2), both).await.expect("no end").1.unwrap();
        assert_eq!(read.matches("HTTP/1.1 200").count(), 4, "cut at {cut}: {read}");
    }
}

#[actix_rt::test]
async fn a_request_behind_a_chunked_body_is_timed_and_looked_at_as_any_other() {
    let node = node(parrot::backends(), |settings| settings.head_timeout_secs = 1);
    let session = Session::begin(&node.running, "2025-11-25").await;
    let pings = pings(&session, 4, &[0]);
    let (chunked, last) = pings.split_at(pings.rfind("POST").unwrap());
    let chunked = &chunked[chunked.rfind("POST").unwrap()..];
    let mut wire = Wire::open(&node.running).await;
    for _ in 0..2 {
        wire.send(chunked).await;
        assert_eq!(wire.receive().await.status, 200);
        // Longer than a head may take.
        tokio::time::sleep(Duration::from_millis(1_300)).await;
    }
    wire.send(format!("{chunked}{}", last.replacen("\r\n", "\n", 1))).await;
    let read = wire.receive_until_close().await;
    assert!(read.contains("HTTP/1.1 200") && read.contains("HTTP/1.1 400"), "{read}");
}

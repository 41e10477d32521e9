//! A client that sends many requests ahead of the one that is served. A separate program, since it measures the
//! time that its process computes.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "made for all tests of this crate")]
mod kit;

use std::time::Duration;

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
    // As many as the HTTP layer decodes ahead, and as much behind them as fills its buffer.
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

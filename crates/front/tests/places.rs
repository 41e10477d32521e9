//! Which connections a node closes when all places are taken.

use std::time::Duration;

use front::Running;
use tokio::io::AsyncReadExt as _;

use crate::kit::session::{Session, initialize};
use crate::kit::{POLITE, Wire, node, parrot, request, send_request};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

fn ping(tenant: &str, session: &str) -> String {
    request(&format!("POST /{tenant}/mcp"), &format!("{POLITE}Mcp-Session-Id: {session}\r\n"), PING)
}

/// Whether the flood waits for the answer of each of its connections before it opens the next.
/// While all of them wait for an answer, only the idle connection of the other client could be closed.
#[derive(Clone, Copy, PartialEq)]
enum Answers {
    Awaited,
    None,
}

/// A client of one tenant has one idle connection. Then more connections than there are places send
/// these bytes. The next request of the client is answered on its connection.
async fn check(answers: Answers, sent: impl AsyncFnOnce(&Running) -> String) {
    let front = node(parrot::backends(), |settings| settings.connections_max = 24).running;
    let mut kept = Wire::open(&front).await;
    kept.send(request("POST /picky/mcp", POLITE, &initialize("2025-06-18").to_string())).await;
    let welcome = kept.receive().await;
    let session = welcome.header("mcp-session-id").expect(&welcome.head);
    let sent = sent(&front).await;
    let mut flood = Vec::new();
    for _ in 0..100 {
        let mut wire = Wire::open(&front).await;
        wire.send(&sent).await;
        if answers == Answers::Awaited {
            wire.receive().await;
        }
        flood.push(wire);
    }
    // The kernel keeps connections in order: an answer says that all the others were accepted.
    let newcomer = send_request(&front, "POST /demo/mcp", POLITE, PING);
    let newcomer = tokio::time::timeout(Duration::from_secs(15), newcomer).await.expect("no place");
    assert_eq!(newcomer.status, 400);
    kept.send(ping("picky", session)).await;
    assert_eq!(kept.receive().await.status, 200);
}

#[actix_rt::test]
async fn silent_connections_do_not_close_the_idle_one_of_a_tenant() {
    check(Answers::None, async |_| String::new()).await;
}

#[actix_rt::test]
async fn bodies_that_wait_for_memory_keep_no_client_out() {
    let front = node(parrot::backends(), |settings| {
        settings.connections_max = 24;
        settings.body_bytes_max = 200_000;
        settings.bodies_bytes_max = 400_000;
    });
    let session = Session::begin(&front.running, "2025-06-18").await;
    let headers = format!("{POLITE}Mcp-Session-Id: {}\r\n", session.id);
    let whole = request("POST /demo/mcp", &headers, &" ".repeat(190_000));
    let mut flood = Vec::new();
    for _ in 0..100 {
        let mut wire = Wire::open(&front.running).await;
        // The memory is enough for a few of them. All others wait, for up to 5 s.
        wire.send(&whole.as_bytes()[..100_000]).await;
        flood.push(wire);
    }
    let until = tokio::time::Instant::now() + Duration::from_secs(4);
    let mut refused = 0;
    for wire in &mut flood {
        let mut answer = [0; 12];
        let read = tokio::time::timeout_at(until, wire.0.read_exact(&mut answer)).await;
        refused += usize::from(matches!(read, Ok(Ok(_))) && answer == *b"HTTP/1.1 503");
    }
    assert!(refused >= 20, "{refused} bodies were refused before their time was over");
    let newcomer = send_request(&front.running, "POST /demo/mcp", POLITE, PING);
    let newcomer = tokio::time::timeout(Duration::from_secs(15), newcomer).await.expect("no place");
    assert_eq!(newcomer.status, 400);
}

#[actix_rt::test]
async fn half_heads_do_not_close_the_idle_connection_of_a_tenant() {
    check(Answers::None, async |_| "POST /demo/mcp HTTP/1.1\r\nHos".to_owned()).await;
}

#[actix_rt::test]
async fn answered_connections_of_a_tenant_do_not_close_the_idle_one_of_another() {
    check(Answers::Awaited, async |front| {
        ping("demo", &Session::begin(front, "2025-06-18").await.id)
    })
    .await;
}

#[actix_rt::test]
async fn connections_with_refused_requests_do_not_count_for_the_tenant_that_they_name() {
    check(Answers::Awaited, async |_| ping("picky", "unknown")).await;
}

//! A session over pipes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::kit::parrot;
use crate::kit::session::{call, initialize, initialized};
use front::serve_stdio;
use serde_json::{Value, json};
use tenants::Tenant;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines};

/// The client's ends of the pipes, and the server.
struct Piped {
    stdin: Option<DuplexStream>,
    stdout: Lines<BufReader<DuplexStream>>,
    server: actix_rt::task::JoinHandle<io::Result<()>>,
}

impl Piped {
    fn start(grace: Duration) -> Self {
        let (stdin, read) = tokio::io::duplex(4096);
        let (write, stdout) = tokio::io::duplex(4096);
        let server = actix_rt::spawn(async move {
            let handle = crate::kit::handle(parrot::backends());
            let tenant = Arc::new(Tenant::new("demo", &tenants::Settings::open()).unwrap());
            let reporting = front::Reporting::default();
            serve_stdio(&handle, &tenant, 10_000, grace, read, write, &reporting).await
        });
        Self { stdin: Some(stdin), stdout: BufReader::new(stdout).lines(), server }
    }

    async fn send(&mut self, line: impl std::fmt::Display) {
        self.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn receive(&mut self) -> Value {
        let line = tokio::time::timeout(Duration::from_secs(10), self.stdout.next_line()).await;
        serde_json::from_str(&line.expect("no line").unwrap().expect("closed")).unwrap()
    }

    async fn handshake(&mut self, revision: &str) {
        self.send(initialize(revision)).await;
        assert_eq!(self.receive().await["result"]["protocolVersion"], revision);
        self.send(initialized()).await;
    }

    /// Closes the client's end. Returns the messages that still arrive and the server's result.
    async fn close(mut self) -> Vec<Value> {
        self.stdin = None;
        let mut rest = Vec::new();
        while let Some(line) = self.stdout.next_line().await.unwrap() {
            rest.push(serde_json::from_str(&line).unwrap());
        }
        self.server.await.unwrap().unwrap();
        rest
    }
}

const LONG: Duration = Duration::from_secs(20);

// holds: STD-01
#[actix_rt::test]
async fn a_session_lives_between_two_pipes() {
    let mut piped = Piped::start(LONG);
    piped.handshake("2025-11-25").await;
    piped.send(call(1, "steps", json!({}))).await;
    for _ in 1..=3 {
        assert_eq!(piped.receive().await["method"], "notifications/progress");
    }
    assert_eq!(piped.receive().await["result"]["content"][0]["text"], "stepped");
    assert_eq!(piped.close().await, [] as [Value; 0]);
}

// holds: STD-01, RPC-06
#[actix_rt::test]
async fn what_is_no_message_is_answered_without_an_id_and_harms_nothing() {
    let mut piped = Piped::start(LONG);
    piped.handshake("2025-06-18").await;
    for (line, code) in [
        ("nonsense".to_owned(), -32700),
        (r#"{"jsonrpc":"1.0","method":"x"}"#.to_owned(), -32600),
        (format!("\"{}\"", "x".repeat(20_000)), -32600),
        (r#"[{"jsonrpc":"2.0","method":"notifications/x"}]"#.to_owned(), -32600),
    ] {
        piped.send(&line).await;
        let error = piped.receive().await;
        assert_eq!(error["error"]["code"], code, "{error}");
        assert!(error.get("id").is_none(), "{error}");
    }
    piped.send("\r").await;
    piped.send(format!("{}\r", call(1, "echo", json!({ "text": "still here" })))).await;
    assert_eq!(piped.receive().await["result"]["content"][0]["text"], "still here");
}

// holds: STD-07
#[actix_rt::test]
async fn batches_are_taken_where_the_revision_has_them() {
    let mut piped = Piped::start(LONG);
    piped.handshake("2025-03-26").await;
    piped.send(json!([call(1, "echo", json!({})), call(2, "echo", json!({}))])).await;
    let mut ids = Vec::new();
    while ids.len() < 2 {
        match piped.receive().await {
            Value::Array(answers) => ids.extend(answers.iter().map(|a| a["id"].as_i64().unwrap())),
            answer => ids.push(answer["id"].as_i64().unwrap()),
        }
    }
    ids.sort_unstable();
    assert_eq!(ids, [1, 2]);
    assert_eq!(piped.close().await, [] as [Value; 0]);
}

#[actix_rt::test]
async fn what_is_in_flight_when_the_client_closes_is_still_answered() {
    let mut piped = Piped::start(LONG);
    piped.handshake("2025-11-25").await;
    piped.send(call(1, "slow", json!({ "millis": 300 }))).await;
    let rest = piped.close().await;
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0]["id"], 1);
}

#[actix_rt::test]
async fn a_call_that_never_ends_is_waited_for_no_longer_than_agreed() {
    let mut piped = Piped::start(Duration::from_millis(200));
    piped.handshake("2025-11-25").await;
    piped.send(call(1, "never", json!({}))).await;
    piped.close().await;
}

#[actix_rt::test]
async fn a_cancelled_call_is_not_waited_for() {
    let mut piped = Piped::start(Duration::from_secs(600));
    piped.handshake("2025-11-25").await;
    piped.send(call(1, "never", json!({}))).await;
    let params = json!({ "requestId": 1 });
    piped
        .send(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }))
        .await;
    tokio::time::timeout(Duration::from_secs(10), piped.close()).await.expect("waited");
}

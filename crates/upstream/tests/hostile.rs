//! Servers that send too much, too little, or what is no MCP.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Barrier;
use upstream::{Exchange, ExchangeEvent, Failure, HeaderText, HttpSettings, Verb};

use crate::server::{Answer, Server, client_of, exchange, perform, perform_charged, perform_with};

const JSON: &str = "Content-Type: application/json\r\n";
const EVENTS: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
const RESULT: &str = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;

fn response(status: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    Answer::Once(format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}"))
}

/// The last event of a request to a server with this answer.
async fn last(answer: Answer) -> ExchangeEvent {
    Server::start(vec![answer]).await.events().await.pop().unwrap()
}

#[track_caller]
fn failed(event: &ExchangeEvent, failure: Failure) {
    assert_eq!(*event, ExchangeEvent::Failed(failure));
}

#[tokio::test]
async fn a_body_without_end_is_cut_at_its_bound() {
    let head = format!("HTTP/1.1 200 OK\r\n{JSON}\r\n");
    failed(&last(Answer::Endless(head, " ".repeat(100))).await, Failure::TooLarge);
    let fits = format!("{RESULT}{}", " ".repeat(1_000 - RESULT.len()));
    assert_eq!(last(response("200 OK", JSON, &fits)).await, ExchangeEvent::Ended);
    let longer = format!("{fits} ");
    failed(&last(response("200 OK", JSON, &longer)).await, Failure::TooLarge);
}

#[tokio::test]
async fn an_event_without_end_is_cut_at_its_bound() {
    failed(
        &last(Answer::Endless(EVENTS.into(), "data: 0123456789".into())).await,
        Failure::TooLarge,
    );
}

#[tokio::test]
async fn a_head_without_end_is_cut() {
    let line = format!("X-Fill: {}\r\n", "x".repeat(1_000));
    failed(&last(Answer::Endless("HTTP/1.1 200 OK\r\n".into(), line)).await, Failure::Lost);
}

#[tokio::test]
async fn an_error_without_end_is_not_waited_for() {
    let head = format!("HTTP/1.1 500 Oh\r\n{JSON}\r\n");
    let event = last(Answer::Endless(head, " ".repeat(1_000))).await;
    assert_eq!(event, ExchangeEvent::Refused { status: 500, error: None });
}

#[tokio::test]
async fn a_server_that_sends_nothing_is_not_waited_for_longer_than_its_bound() {
    let begin = Instant::now();
    let half = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{";
    let (silent, half) =
        tokio::join!(last(Answer::Nothing), last(Answer::Endless(half.into(), String::new())));
    failed(&silent, Failure::Silent);
    failed(&half, Failure::Silent);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_response_that_is_no_mcp_is_a_failure() {
    let check = async |headers: &str, body: &str, failure: Failure| {
        failed(&last(response("200 OK", headers, body)).await, failure);
    };
    check("Content-Type: text/html\r\n", "<html>", Failure::ContentType).await;
    check("", RESULT, Failure::ContentType).await;
    check(JSON, "{}", Failure::NotAMessage).await;
    check(JSON, "", Failure::NotAMessage).await;
    check(&format!("{JSON}Content-Encoding: gzip\r\n"), RESULT, Failure::ContentType).await;
    check(&format!("{JSON}Mcp-Session-Id: a b\r\n"), RESULT, Failure::SessionId).await;
    failed(&last(Answer::Once("no HTTP".into())).await, Failure::Lost);
    let cut = format!("HTTP/1.1 200 OK\r\n{JSON}Content-Length: 99\r\n\r\n{{");
    failed(&last(Answer::Once(cut)).await, Failure::Lost);
}

#[tokio::test]
async fn an_event_that_is_no_message_is_left_out() {
    let stream = format!(
        "{EVENTS}event: ping\ndata: {RESULT}\n\ndata: {{}}\n\nid: 7\nretry: 20\ndata: [{RESULT},1]\n\n"
    );
    let events = Server::start(vec![Answer::Once(stream)]).await.events().await;
    let messages = |event: &ExchangeEvent| match event {
        ExchangeEvent::Event { messages, .. } => messages.len(),
        _ => 0,
    };
    assert_eq!(events.iter().map(messages).collect::<Vec<_>>(), [0, 0, 0, 1, 0]);
    let ExchangeEvent::Event { id, retry_ms, .. } = &events[3] else { panic!("no event") };
    assert_eq!((id, retry_ms), (&HeaderText::parse(b"7"), &Some(20)));
}

// holds: SEC-20
#[tokio::test]
async fn a_redirect_is_followed_within_the_origin_and_not_elsewhere() {
    let other = Server::start(vec![response("200 OK", JSON, RESULT)]).await;
    for status in ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"] {
        let to = format!("Location: {}\r\n", other.url);
        failed(&last(response(status, &to, "")).await, Failure::Redirect);
    }
    assert!(other.requests().is_empty());
    let there = response("307 Temporary", "Location: /mcp/\r\nConnection: close\r\n", "");
    let server = Server::start(vec![there.clone(), response("200 OK", JSON, RESULT)]).await;
    assert_eq!(server.events().await.pop(), Some(ExchangeEvent::Ended));
    let requests = server.requests();
    assert!(requests[1].starts_with("POST /mcp/ HTTP/1.1\r\n"), "{requests:?}");
    assert!(requests[1].ends_with(r#""method":"ping"}"#), "{requests:?}");
    failed(&last(there).await, Failure::Redirect);
}

#[tokio::test]
async fn a_refusal_has_its_status_and_the_error_of_its_body() {
    let error = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"own"}}"#;
    let ExchangeEvent::Refused { status: 400, error: Some(error) } =
        last(response("400 Bad Request", JSON, error)).await
    else {
        panic!("no error")
    };
    assert!(error.outcome().is_err());
    let event = last(response("401 Unauthorized", "Content-Type: text/plain\r\n", "hunter2")).await;
    assert_eq!(event, ExchangeEvent::Refused { status: 401, error: None });
}

// holds: SES-09
#[tokio::test]
async fn only_a_404_for_a_session_means_that_it_is_gone() {
    let server = Server::start(vec![response("404 Not Found", "", "")]).await;
    let gone = server.events().await.pop();
    assert_eq!(gone, Some(ExchangeEvent::Refused { status: 404, error: None }));
    let session = HeaderText::visible(b"s1");
    let gone = perform(&server.settings(), upstream::Exchange { session, ..exchange() }).await;
    assert_eq!(gone, [ExchangeEvent::SessionGone]);
}

// holds: SEC-14
#[tokio::test]
async fn a_request_has_the_headers_of_the_session_and_of_the_settings() {
    let server = Server::start(vec![response("200 OK", JSON, RESULT)]).await;
    let mut settings = server.settings();
    settings.headers.insert("Authorization".into(), "Bearer hunter2".into());
    let session = HeaderText::visible(b"s1");
    let revision = HeaderText::visible(b"2025-06-18");
    let resume = upstream::Exchange {
        verb: Verb::Resume(HeaderText::parse(b"e7").unwrap()),
        session,
        revision,
        ..exchange()
    };
    perform(&settings, exchange()).await;
    perform(&settings, resume).await;
    let requests: Vec<_> = server.requests().iter().map(|r| r.to_lowercase()).collect();
    for line in ["authorization: bearer hunter2", "accept: application/json, text/event-stream"] {
        assert!(requests[0].contains(line), "{requests:?}");
    }
    assert!(requests[1].starts_with("get /mcp http/1.1\r\n"));
    let head = requests[0].split("\r\n\r\n").next().unwrap();
    let names = head.lines().skip(1).filter_map(|line| line.split(':').next());
    let names: std::collections::BTreeSet<_> = names.collect();
    let all = ["accept", "authorization", "content-length", "content-type", "host", "user-agent"];
    assert_eq!(names, all.into());
    for line in [
        "authorization: bearer hunter2",
        "accept: text/event-stream",
        "mcp-session-id: s1",
        "mcp-protocol-version: 2025-06-18",
        "last-event-id: e7",
    ] {
        assert!(requests[1].contains(&format!("\r\n{line}\r\n")), "{requests:?}");
    }
}

#[tokio::test]
async fn an_address_is_judged_after_its_name_was_resolved() {
    let server = Server::start(vec![response("200 OK", JSON, RESULT)]).await;
    let url = server.url.replace("127.0.0.1", "localhost");
    let refused = perform(&HttpSettings::new(url.clone()), exchange()).await;
    assert_eq!(refused, [ExchangeEvent::Failed(Failure::NotPermitted)]);
    assert!(server.requests().is_empty());
    let permitted = perform(&HttpSettings { url, ..server.settings() }, exchange()).await;
    assert_eq!(permitted.last(), Some(&ExchangeEvent::Ended));
}

#[tokio::test]
async fn a_server_that_is_not_there_cannot_be_reached() {
    let mut settings = Server::start(Vec::new()).await.settings();
    settings.url = "http://127.0.0.1:1/".into();
    let events = perform(&settings, exchange()).await;
    assert_eq!(events, [ExchangeEvent::Failed(Failure::Connect)]);
}

#[tokio::test]
async fn a_connection_for_a_stream_is_not_waited_for() {
    let server = Server::start(vec![Answer::Nothing]).await;
    let settings = HttpSettings { connections_max: 8, ..server.settings() };
    let client = client_of(&settings).unwrap();
    let outcomes = crate::server::at_once(&client, Verb::Listen(None), 5).await;
    assert_eq!(outcomes, [ExchangeEvent::Failed(Failure::Busy)]);
}

// holds: SEC-20
#[tokio::test]
async fn the_url_for_messages_has_the_origin_of_the_stream() {
    let endpoint = async |data: &str| {
        let stream = format!("{EVENTS}event: endpoint\ndata: {data}\n\n");
        let server = Server::start(vec![Answer::Once(stream)]).await;
        let listen = upstream::Exchange { verb: Verb::Listen(None), ..exchange() };
        perform(&server.settings(), listen).await
    };
    let own = endpoint("/messages?s=1").await;
    assert!(matches!(&own[1], ExchangeEvent::Endpoint(_)), "{own:?}");
    let other = endpoint("http://127.0.0.1:1/messages").await;
    assert_eq!(other[1], ExchangeEvent::Failed(Failure::Redirect));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_left_alone_after_some_tries() {
    let mut settings = Server::start(Vec::new()).await.settings();
    settings.url = "http://127.0.0.1:1/".into();
    let client = client_of(&settings).unwrap();
    let mut failures = Vec::new();
    let in_session = || Exchange { revision: HeaderText::parse(b"2025-11-25"), ..exchange() };
    for _ in 0..7 {
        failures.extend(perform_with(&client, in_session()).await);
    }
    let of = |failure| ExchangeEvent::Failed(failure);
    assert!(failures[..5].iter().all(|event| *event == of(Failure::Connect)), "{failures:?}");
    assert!(failures[5..].iter().all(|event| *event == of(Failure::HeldBack)), "{failures:?}");
    // The first exchange of a session waits for the next try, which it is here.
    let begin = Instant::now();
    assert_eq!(perform_with(&client, exchange()).await, [of(Failure::Connect)]);
    assert!(begin.elapsed() > Duration::from_millis(500), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_server_that_answers_with_errors_is_not_left_alone() {
    let server = Server::start(vec![response("503 Busy", "Connection: close\r\n", "")]).await;
    let client = client_of(&server.settings()).unwrap();
    for _ in 0..9 {
        let events = perform_with(&client, exchange()).await;
        assert_eq!(events, [ExchangeEvent::Refused { status: 503, error: None }]);
    }
}

#[tokio::test]
async fn an_idle_connection_is_not_used_again_when_its_server_may_have_closed_it() {
    let pong = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    let length = pong.len();
    let answer = format!("HTTP/1.1 200 OK\r\n{JSON}Content-Length: {length}\r\n\r\n{pong}");
    // It answers the first request of a connection, and no further one.
    let server = Server::start(vec![Answer::Endless(answer, String::new())]).await;
    let client = client_of(&server.settings()).unwrap();
    let first = perform_with(&client, exchange()).await;
    // Servers of Node and of Python close idle connections after 5 s.
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    let second = perform_with(&client, exchange()).await;
    assert!(!first.iter().any(|event| matches!(event, ExchangeEvent::Failed(_))), "{first:?}");
    assert_eq!(first, second);
    assert_eq!(server.requests().len(), 2);
}

/// A server that answers the first request on each connection once so many have come, and closes the
/// connection without an answer at the second.
async fn closes_when_used_again(connections: usize) -> HttpSettings {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut settings = HttpSettings::new(format!("http://{}/", listener.local_addr().unwrap()));
    settings.allow_networks.push("127.0.0.0/8".parse().unwrap());
    tokio::spawn(async move {
        let all = Arc::new(Barrier::new(connections));
        for count in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let all = Arc::clone(&all);
            tokio::spawn(async move {
                let mut request = vec![0; 4_096];
                let _ = stream.read(&mut request).await;
                if count < connections {
                    all.wait().await;
                }
                let head = format!("HTTP/1.1 200 OK\r\n{JSON}Content-Length: {}", RESULT.len());
                let answer = format!("{head}\r\n\r\n{RESULT}");
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.read(&mut request).await;
            });
        }
    });
    settings
}

#[tokio::test]
async fn connections_that_are_closed_when_they_are_used_again_open_no_breaker() {
    const COUNT: usize = 6;
    let settings = closes_when_used_again(COUNT).await;
    let client = client_of(&settings).unwrap();
    let last = async || perform_with(&client, exchange()).await.pop().unwrap();
    let all = async || join_all((0..COUNT).map(|_| last())).await;
    assert!(all().await.iter().all(|last| *last == ExchangeEvent::Ended));
    // The node cannot know whether the server has performed them.
    all().await.iter().for_each(|last| failed(last, Failure::Lost));
    assert_eq!(last().await, ExchangeEvent::Ended, "not held back");
}

#[tokio::test]
async fn bodies_that_exceed_the_share_of_their_tenant_together_are_all_read() {
    const COUNT: usize = 4;
    const HALF: usize = 350 << 10;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut settings = HttpSettings::new(format!("http://{}/", listener.local_addr().unwrap()));
    settings.allow_networks.push("127.0.0.0/8".parse().unwrap());
    settings.message_bytes_max = 1 << 20;
    tokio::spawn(async move {
        let all = Arc::new(Barrier::new(COUNT));
        while let Ok((mut stream, _)) = listener.accept().await {
            let all = Arc::clone(&all);
            tokio::spawn(async move {
                let _length = stream.read(&mut vec![0; 4_096]).await;
                let length = 2 * HALF + RESULT.len();
                let head = format!("HTTP/1.1 200 OK\r\n{JSON}Content-Length: {length}\r\n\r\n");
                let half = " ".repeat(HALF);
                let _ = stream.write_all(format!("{head}{half}").as_bytes()).await;
                // Each is read in part.
                all.wait().await;
                let _ = stream.write_all(format!("{half}{RESULT}").as_bytes()).await;
            });
        }
    });
    // It has room for one of them.
    let limits = budget::ShareLimits { min: 0, max: 800 << 10 };
    let budget = budget::Budget::notifying(1 << 30, [("a".into(), limits)], || {});
    let share = budget.share("a").unwrap();
    let client = client_of(&settings).unwrap();
    let performed = (0..COUNT).map(|_| perform_charged(&client, exchange(), Some(share.clone())));
    for events in join_all(performed).await {
        assert_eq!(events.last(), Some(&ExchangeEvent::Ended), "{:?}", events.len());
    }
    assert_eq!(share.used(), 0);
}

//! Messages that clients must not send: each gets its status and its JSON-RPC error, and has no
//! effect on another session of the same node.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use tests::check::{self, Id};
use tests::mcp::{Client, REVISIONS};
use tests::raw::{self, Answer};
use tests::{Node, Setup};

const NEWEST: &str = "2025-11-25";

/// How long a connection may be silent before the test expects no further bytes.
const QUIET: Duration = Duration::from_millis(1_500);

// holds: RPC-01, RPC-06, RPC-13, POST-09
#[tokio::test]
async fn what_is_no_json_is_a_parse_error_without_an_id() -> Result<()> {
    beside_a_healthy_session(async |client| {
        let bodies: [&[u8]; 9] = [
            b"",
            b" ",
            b"{bad",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}}",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"p\xff\xfeng\"}",
            b"\xff\xfe{\x00}\x00",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xed\xa0\x80\"}",
            b"nothing at all",
        ];
        for body in bodies {
            let response = client.send_bytes(body.to_vec()).await?;
            let refused = check::refused(response, 400, -32700, Id::Unread).await;
            refused.with_context(|| String::from_utf8_lossy(body).into_owned())?;
        }
        Ok(())
    })
    .await
}

// holds: RPC-01, RPC-02, RPC-13
#[tokio::test]
async fn what_is_no_json_rpc_is_an_invalid_request() -> Result<()> {
    beside_a_healthy_session(async |client| {
        for body in [
            json!({"id": 1, "method": "ping"}),
            json!({"jsonrpc": "1.0", "id": 1, "method": "ping"}),
            json!({"jsonrpc": 2.0, "id": 1, "method": "ping"}),
            json!({"jsonrpc": "2.0", "id": null, "method": "ping"}),
            json!({"jsonrpc": "2.0", "id": {"a": 1}, "method": "ping"}),
            json!({"jsonrpc": "2.0", "id": [1], "method": "ping"}),
            json!({"jsonrpc": "2.0", "id": true, "method": "ping"}),
            json!({"jsonrpc": "2.0", "id": 1, "method": 7}),
            json!({"jsonrpc": "2.0", "id": 1}),
            json!({"jsonrpc": "2.0", "id": 1, "result": {}, "error": {"code": 1, "message": "x"}}),
            json!({"jsonrpc": "2.0", "id": 1, "error": {"code": "x", "message": "x"}}),
            json!({"jsonrpc": "2.0"}),
            json!({}),
            json!("ping"),
            json!(7),
            json!(null),
        ] {
            let response = client.send_bytes(body.to_string()).await?;
            check::refused(response, 400, -32600, Id::Any)
                .await
                .with_context(|| body.to_string())?;
        }
        let no_id = client.send_bytes(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#).await?;
        check::refused(no_id, 400, -32600, Id::Unread).await
    })
    .await
}

// holds: RPC-02, RPC-04
#[tokio::test]
async fn ids_come_back_as_they_were() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        for revision in REVISIONS {
            let client = Client::open(node.demo(), revision).await?;
            for id in [
                json!(7_000),
                json!("7000"),
                json!("a-b"),
                json!(0),
                json!(-5),
                json!(9_007_199_254_740_993_i64),
                json!("é\n\""),
            ] {
                for (method, params) in
                    [("ping", json!({})), ("tools/call", json!({"name": "test_simple_text"}))]
                {
                    let id = if method == "ping" { id.clone() } else { again(&id) };
                    let message =
                        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
                    let word = tests::mcp::final_response(client.send(message).await?).await?;
                    ensure!(word["id"] == id && word.get("result").is_some(), "{id}: {word}");
                }
            }
        }
    }
    Ok(())
}

/// Another id of the same type: an id can be used only once in a session.
fn again(id: &Value) -> Value {
    match id {
        Value::String(text) => json!(format!("{text}!")),
        other => json!(other.as_i64().map_or(1, |number| number - 100_000)),
    }
}

#[tokio::test]
async fn a_bomb_of_brackets_costs_nothing() -> Result<()> {
    beside_a_healthy_session(async |client| {
        let deep = 1_000_000;
        let open_only = "[".repeat(deep);
        let objects = "{\"a\":".repeat(deep / 2);
        let params = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\",\"params\":{}{}}}",
            "[".repeat(deep),
            "]".repeat(deep)
        );
        let closed = format!("{}{}", "[".repeat(deep), "]".repeat(deep));
        for bomb in [open_only, objects, params, closed] {
            let started = Instant::now();
            let response = client.send_bytes(bomb).await?;
            check::status(&response, 400)?;
            let error: Value = response.json().await?;
            let code = &error["error"]["code"];
            ensure!(*code == -32700 || *code == -32600, "{error}");
            ensure!(started.elapsed() < Duration::from_secs(2), "it took {:?}", started.elapsed());
        }
        Ok(())
    })
    .await
}

// holds: POST-19
#[tokio::test]
async fn a_body_of_64_mib_is_413_whether_it_says_its_length_or_not() -> Result<()> {
    beside_a_healthy_session(async |client| {
        let session = client.session.clone().context("no session")?;
        let head = format!(
            "POST /demo/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: */*\r\n\
             Mcp-Session-Id: {session}\r\n"
        );
        let mib = 64 << 20;
        let mut said = format!("{head}Content-Length: {mib}\r\n\r\n").into_bytes();
        said.resize(said.len() + mib, b' ');
        let mut chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
        let chunk = [b"100000\r\n".as_slice(), &vec![b' '; 1 << 20], b"\r\n"].concat();
        for _ in 0..64 {
            chunked.extend_from_slice(&chunk);
        }
        let base = client.url.trim_end_matches("/demo/mcp").to_owned();
        for bytes in [said, chunked] {
            let answer = raw::send(&base, &bytes, QUIET).await?;
            ensure!(answer.status == Some(413), "{:?} {:.300}", answer.status, answer.text);
            ensure!(answer.responses() == 1, "{:.1000}", answer.text);
        }
        let http = client.http(Method::POST).header("content-type", "application/json");
        let response = http.body(vec![b' '; mib]).send().await?;
        check::refused(response, 413, -32600, Id::Unread).await
    })
    .await
}

// holds: POST-19
#[tokio::test]
async fn heads_that_are_too_long_are_431() -> Result<()> {
    beside_a_healthy_session(async |client| {
        let base = client.url.trim_end_matches("/demo/mcp").to_owned();
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let head = "POST /demo/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: */*\r\n";
        let one = format!("{head}X-Long: {}\r\n", "x".repeat(64 << 10));
        let many: String = (0..500).map(|n| format!("X-{n}: x\r\n")).collect();
        let many = format!("{head}{many}");
        let endless = format!("{head}X-Long: {}\r\n", "x".repeat(1 << 20));
        for head in [one, many, endless] {
            let bytes = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
            let answer = raw::send(&base, bytes.as_bytes(), QUIET).await?;
            ensure!(answer.status == Some(431), "{:?} {:.300}", answer.status, answer.text);
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_second_request_cannot_hide_in_the_first() -> Result<()> {
    beside_a_healthy_session(async |client| {
        let base = client.url.trim_end_matches("/demo/mcp").to_owned();
        let session = client.session.clone().context("no session")?;
        let body = r#"{"jsonrpc":"2.0","id":"x1","method":"ping"}"#;
        let hidden =
            "DELETE /demo/mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: SESSION\r\n\r\n"
                .replace("SESSION", &session);
        let length = body.len();
        let request = |framing: &str, rest: &str| {
            format!(
                "POST /demo/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Accept: */*\r\nMcp-Session-Id: {session}\r\n{framing}\r\n\r\n{rest}"
            )
        };
        let chunked = format!("{length:x}\r\n{body}\r\n0\r\n\r\n{hidden}");
        let attempts = [
            request(&format!("Content-Length: {length}\r\nTransfer-Encoding: chunked"), &chunked),
            request(&format!("Transfer-Encoding: chunked\r\nContent-Length: {length}"), &chunked),
            request(
                &format!("Content-Length: {length}\r\nContent-Length: {}", length + 5),
                &format!("{body}{hidden}"),
            ),
            request(
                &format!("Content-Length: {length}, {}", length + 5),
                &format!("{body}{hidden}"),
            ),
            request("Content-Length: +43", &format!("{body}{hidden}")),
            request("Content-Length: -1", &format!("{body}{hidden}")),
            request("Transfer-Encoding: xchunked", &chunked),
            request("Transfer-Encoding: chunked, identity", &chunked),
            request("Transfer-Encoding : chunked", &chunked),
            request(&format!("X: y\r\n Content-Length: {length}"), &format!("{body}{hidden}")),
            request("Transfer-Encoding: chunked", &format!("-1\r\n{body}\r\n0\r\n\r\n{hidden}")),
            request(
                "Transfer-Encoding: chunked",
                &format!("fffffffffffffffff\r\n{body}\r\n0\r\n\r\n{hidden}"),
            ),
        ];
        for attempt in attempts {
            let Answer { status, text } = raw::send(&base, attempt.as_bytes(), QUIET).await?;
            ensure!(status == Some(400), "{status:?} for\n{attempt}\n\n{text}");
            ensure!(text.matches("HTTP/1.1 ").count() == 1, "two answers to\n{attempt}\n\n{text}");
        }
        for name in [
            "Mcp-Session-Id: other",
            "Host: evil.example.com",
            "MCP-Protocol-Version: 2025-11-25\r\nMCP-Protocol-Version: 2025-03-26",
            "Content-Type: text/plain",
        ] {
            let attempt =
                request(&format!("{name}\r\nContent-Length: {length}\r\nConnection: close"), body);
            let Answer { status, text } = raw::send(&base, attempt.as_bytes(), QUIET).await?;
            ensure!(status == Some(400), "{status:?} for a second {name}: {text}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_is_no_http_is_refused_or_cut_off() -> Result<()> {
    beside_a_healthy_session(async |client| {
        let base = client.url.trim_end_matches("/demo/mcp").to_owned();
        let attempts: [&[u8]; 5] = [
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"GET\r\n\r\n",
            b"GET /demo/mcp HTTP/9.9\r\n\r\n",
            b"GET /demo/mcp\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ];
        for attempt in attempts {
            let answer = raw::send(&base, attempt, QUIET).await?;
            let fine = answer.status.is_none_or(|status| (400..600).contains(&status));
            ensure!(fine, "{}: {answer:?}", String::from_utf8_lossy(attempt));
        }
        Ok(())
    })
    .await
}

// holds: RPC-13
#[tokio::test]
async fn unknown_methods_and_bad_parameters_have_their_codes_and_end_no_session() -> Result<()> {
    beside_a_healthy_session(async |client| {
        for (method, params, code) in [
            ("no/such/method", json!({}), -32601),
            ("tools/call", json!({}), -32602),
            ("tools/call", json!({"name": 7}), -32602),
            ("tools/call", json!({"name": "no_such_tool"}), -32602),
            ("logging/setLevel", json!({"level": "loud"}), -32602),
        ] {
            let message = client.message(method, params);
            let id = message["id"].clone();
            let response = client.send(message).await?;
            // 404 would mean that the session does not exist (RPC-14 is of a later revision).
            ensure!(response.status() == 200, "{method}: {}", response.status());
            let word = tests::mcp::final_response(response).await?;
            check::is_error(&word, code, Id::Of(id)).context(method)?;
        }
        client.is_well().await
    })
    .await
}

// holds: RPC-03
#[tokio::test]
async fn an_id_that_is_in_flight_is_refused_and_its_first_use_goes_on() -> Result<()> {
    beside_a_healthy_session(async |client| {
        let arguments = json!({"n": 5, "interval_ms": 100});
        let call = client.call_with_progress("rh_count", arguments, json!("t"));
        let mut stream = client.stream(call.clone()).await?;
        stream.message().await?.context("nothing came")?;
        let response = client.send(call.clone()).await?;
        ensure!(response.status() == 200, "{}", response.status());
        let word = tests::mcp::final_response(response).await?;
        check::is_error(&word, -32600, Id::Of(call["id"].clone()))?;
        let last = stream.rest().await?.pop().and_then(|block| block.message());
        let last = last.context("the first use lost its answer")?;
        ensure!(last["result"]["content"][0]["text"] == "counted to 5", "{last}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_second_answer_to_one_question_changes_nothing() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        for revision in ["2025-06-18", NEWEST] {
            let capabilities = json!({"elicitation": {}});
            let client = Client::open_with(node.demo(), revision, capabilities).await?;
            let mut stream =
                client.stream(client.call("test_elicitation", json!({"message": "?"}))).await?;
            let (_, question) = stream.message().await?.context("no question")?;
            ensure!(question["method"] == "elicitation/create", "{question}");
            let content = |name: &str| json!({"action": "accept", "content": {"username": name, "email": "x@y.zz"}});
            for name in ["first", "second", "third"] {
                check::accepted(client.answer(&question["id"], content(name)).await?).await?;
            }
            let (_, word) = stream.message().await?.context("no response")?;
            let text = word["result"]["content"][0]["text"].as_str().context("no text")?;
            ensure!(text.contains("first") && !text.contains("second"), "{text}");
            client.is_well().await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn nobody_answers_another_sessions_question() -> Result<()> {
    let node = Node::start(&Setup::fixture())?;
    let capabilities = json!({"elicitation": {}});
    let asked = Client::open_with(node.demo(), NEWEST, capabilities.clone()).await?;
    let other = Client::open_with(node.demo(), NEWEST, capabilities).await?;
    let mut stream = asked.stream(asked.call("test_elicitation", json!({"message": "?"}))).await?;
    let (_, question) = stream.message().await?.context("no question")?;
    let content =
        |name: &str| json!({"action": "accept", "content": {"username": name, "email": "x@y.zz"}});
    other.answer(&question["id"], content("mallory")).await?;
    asked.answer(&question["id"], content("ada")).await?;
    let (_, word) = stream.message().await?.context("no response")?;
    let text = word["result"]["content"][0]["text"].as_str().context("no text")?;
    ensure!(text.contains("ada") && !text.contains("mallory"), "{text}");
    Ok(())
}

/// Runs a test while another session works, and checks that session afterwards.
async fn beside_a_healthy_session(scenario: impl AsyncFn(&Client) -> Result<()>) -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let healthy = Client::open(node.demo(), NEWEST).await?;
    let call =
        healthy.call_with_progress("rh_count", json!({"n": 40, "interval_ms": 25}), json!("h"));
    let mut stream = healthy.stream(call).await?;
    let client = Client::open(node.demo(), NEWEST).await?;
    scenario(&client).await?;
    client.is_well().await.context("the session under test")?;
    let heard = tests::mcp::messages(&stream.rest().await?);
    let steps =
        heard.iter().filter(|message| message["method"] == "notifications/progress").count();
    ensure!(steps == 40, "the healthy session saw {steps} of 40 steps");
    healthy.is_well().await.context("the healthy session")
}

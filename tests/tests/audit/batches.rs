//! The ends of calls in batches in which an id is there twice, or which cancel their own members.

use anyhow::{Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use tests::audit_log::{Log, is_begin};
use tests::mcp::Client;
use tests::{Node, Setup, check};

use crate::{OverStreams, WITH_BATCHES};

fn request(id: i32, method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn call(id: i32, tool: &str, arguments: &Value) -> Value {
    request(id, "tools/call", &json!({ "name": tool, "arguments": arguments }))
}

/// A batch, how many answers it has, and the outcome and the code of the `end` of each tool's call.
struct Case {
    batch: Value,
    answers: usize,
    ends: &'static [(&'static str, &'static str, Option<i32>)],
}

/// The tools of a case are called in no other.
fn cases() -> [Case; 3] {
    let nothing = json!({});
    let cancelled = |id: i32| json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    let sleep = |id| call(id, "rh_sleep", &json!({ "ms": 60_000 }));
    [
        // Of several requests with one id the session accepts the first.
        Case {
            batch: json!([
                call(7, "test_error_handling", &nothing),
                call(7, "test_simple_text", &nothing),
                request(7, "ping", &nothing),
                call(8, "test_image_content", &nothing),
                call(7, "test_audio_content", &nothing),
            ]),
            answers: 5,
            ends: &[
                ("test_error_handling", "tool_error", None),
                ("test_simple_text", "error", Some(-32600)),
                ("test_image_content", "result", None),
                ("test_audio_content", "error", Some(-32600)),
            ],
        },
        // An answer of another member says nothing of the cancelled one, nor one with its id.
        Case {
            batch: json!([
                sleep(9),
                call(10, "rh_echo", &json!({ "text": "a" })),
                cancelled(9),
                call(9, "test_embedded_resource", &nothing),
            ]),
            answers: 2,
            ends: &[
                ("rh_sleep", "cancelled", None),
                ("rh_echo", "result", None),
                ("test_embedded_resource", "error", Some(-32600)),
            ],
        },
        Case {
            batch: json!([call(11, "test_tool_with_progress", &nothing), cancelled(11)]),
            answers: 0,
            ends: &[("test_tool_with_progress", "cancelled", None)],
        },
    ]
}

async fn check_ends(log: &Log, case: &Case) -> Result<()> {
    for (tool, outcome, code) in case.ends {
        let begin = log.one(|record| is_begin(record, tool)).await?;
        let end = log.end_of(&begin).await?;
        ensure!(end["outcome"] == *outcome && end["code"] == json!(code), "{tool}: {end}");
    }
    Ok(())
}

#[tokio::test]
async fn a_member_of_a_batch_ends_with_its_own_answer_also_if_its_id_is_there_twice() -> Result<()>
{
    let log = Log::new()?;
    let node = Node::start(&log.of(Setup::demo()))?;
    let client = Client::open(node.demo(), WITH_BATCHES).await?;
    // The server runs: a request is sent to it at once.
    client.ask(client.message("tools/list", json!({}))).await?;
    for case in cases() {
        let answer = client.http(Method::POST).json(&case.batch).send().await?;
        check::status(&answer, 200)?;
        let text = answer.text().await?;
        let answers = text.matches("\"jsonrpc\"").count();
        ensure!(answers == case.answers, "{text}");
        check_ends(&log, &case).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_member_of_a_batch_over_standard_streams_ends_with_its_own_answer() -> Result<()> {
    let log = Log::new()?;
    let mut session = OverStreams::start(&log)?;
    let params = json!({ "protocolVersion": WITH_BATCHES, "capabilities": {},
        "clientInfo": { "name": "scenarios", "version": "1" } });
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let ready = [
        (request(1, "initialize", &params), 1),
        (initialized, 0),
        (request(2, "tools/list", &json!({})), 1),
    ];
    let batches = cases().map(|case| (case.batch, case.answers));
    for (message, answers) in ready.into_iter().chain(batches) {
        session.send(&message, answers).await?;
    }
    for case in cases() {
        check_ends(&log, &case).await?;
    }
    // A request that was cancelled is not waited for.
    session.end().await
}

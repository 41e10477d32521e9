//! Batches: accepted if 2025-03-26 was negotiated, refused for every other revision.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tests::audit_log::{Log, is_begin};
use tests::check::{self, Id};
use tests::mcp::{Client, DRAFT, is_response};
use tests::sse::Events;
use tests::{Node, Setup};

const WITH_BATCHES: &str = "2025-03-26";

// holds: BAT-01, BAT-04, POST-05
#[tokio::test]
async fn every_request_of_a_batch_is_answered_once() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        let client = Client::open(node.demo(), WITH_BATCHES).await?;
        let requests = [
            client.message("ping", json!({})),
            client.message("tools/list", json!({})),
            client.call("test_simple_text", json!({})),
            client.message("no/such/method", json!({})),
        ];
        let note = json!({"jsonrpc": "2.0", "method": "notifications/vendor"});
        let batch: Vec<Value> = requests.iter().cloned().chain([note]).collect();
        let answers = answers(post(&client, &json!(batch)).await?).await?;
        for request in &requests {
            let count = answers.iter().filter(|answer| answer["id"] == request["id"]).count();
            ensure!(count == 1, "{} has {count} answers: {answers:?}", request["id"]);
        }
        ensure!(answers.len() == requests.len(), "{answers:?}");
    }
    Ok(())
}

// holds: BAT-04, BAT-08, POST-13
#[tokio::test]
async fn a_batch_whose_calls_talk_is_a_stream_until_the_last_answer() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        let client = Client::open(node.demo(), WITH_BATCHES).await?;
        let call = |token: &str, n: i32| {
            client.call_with_progress("rh_count", json!({"n": n, "interval_ms": 10}), json!(token))
        };
        let batch = json!([call("a", 3), client.message("ping", json!({})), call("b", 6)]);
        let mut stream = Events::of(post(&client, &batch).await?)?;
        let messages = tests::mcp::messages(&stream.rest().await?);
        ensure!(messages.iter().all(Value::is_object), "a batch was sent: {messages:?}");
        let answered = messages.iter().filter(|message| is_response(message)).count();
        ensure!(answered == 3, "{messages:?}");
        for (token, n) in [("a", 3), ("b", 6)] {
            let steps =
                messages.iter().filter(|message| message["params"]["progressToken"] == token);
            let steps: Vec<_> =
                steps.filter_map(|step| step["params"]["progress"].as_f64()).collect();
            ensure!(steps == (1..=n).map(f64::from).collect::<Vec<_>>(), "{token}: {steps:?}");
        }
    }
    Ok(())
}

// holds: BAT-09
#[tokio::test]
async fn the_members_of_a_batch_run_side_by_side() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let client = Client::open(node.demo(), WITH_BATCHES).await?;
    let batch: Vec<Value> = (0..8).map(|_| client.call("rh_sleep", json!({"ms": 500}))).collect();
    let started = Instant::now();
    let answers = answers(post(&client, &json!(batch)).await?).await?;
    ensure!(
        answers.len() == 8 && started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    Ok(())
}

// holds: BAT-09
#[tokio::test]
async fn a_batch_has_a_bound() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let client = Client::open(node.demo(), WITH_BATCHES).await?;
    let batch: Vec<Value> = (0..5_000).map(|_| client.message("ping", json!({}))).collect();
    let response = post(&client, &json!(batch)).await?;
    check::refused(response, 400, -32600, Id::Unread).await?;
    client.is_well().await
}

// holds: BAT-03
#[tokio::test]
async fn a_batch_without_requests_is_accepted() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let client = Client::open(node.demo(), WITH_BATCHES).await?;
    let notes = json!([
        {"jsonrpc": "2.0", "method": "notifications/vendor"},
        {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
    ]);
    check::accepted(post(&client, &notes).await?).await?;
    let answers = json!([{"jsonrpc": "2.0", "id": "nobody-asked", "result": {}}]);
    check::accepted(post(&client, &answers).await?).await
}

// holds: BAT-02
#[tokio::test]
async fn initialize_is_never_in_a_batch() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let client = Client::new(node.demo(), WITH_BATCHES);
    let params = json!({"protocolVersion": WITH_BATCHES, "capabilities": {}, "clientInfo": {"name": "s", "version": "1"}});
    let initialize = client.message("initialize", params);
    check::status(&post(&client, &json!([initialize])).await?, 400)?;
    let live = Client::open(node.demo(), WITH_BATCHES).await?;
    let batch = json!([live.message("ping", json!({})), initialize]);
    check::status(&post(&live, &batch).await?, 400)?;
    live.is_well().await
}

// holds: BAT-05
#[tokio::test]
async fn an_empty_batch_is_one_error_and_bad_members_are_answered_one_by_one() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let client = Client::open(node.demo(), WITH_BATCHES).await?;
    check::refused(post(&client, &json!([])).await?, 400, -32600, Id::Unread).await?;
    let ping = client.message("ping", json!({}));
    let answers = answers(post(&client, &json!([1, ping, {"jsonrpc": "2.0"}])).await?).await?;
    ensure!(answers.len() == 3, "{answers:?}");
    let errors = answers.iter().filter(|answer| answer["error"]["code"] == -32600).count();
    ensure!(errors == 2, "{answers:?}");
    ensure!(
        answers.iter().any(|answer| answer["id"] == ping["id"] && answer["result"] == json!({}))
    );
    Ok(())
}

// holds: BAT-06, POST-06
#[tokio::test]
async fn where_no_batches_were_negotiated_an_array_is_refused() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    for revision in ["2025-06-18", "2025-11-25", DRAFT] {
        let client = Client::open(node.demo(), revision).await?;
        for batch in [json!([client.message("ping", json!({}))]), json!([]), json!([1])] {
            check::refused(post(&client, &batch).await?, 400, -32600, Id::Unread)
                .await
                .context(revision)?;
        }
        client.is_well().await?;
    }
    Ok(())
}

// holds: BAT-07
#[tokio::test]
async fn without_a_session_an_array_is_read_and_misses_its_session() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let client = Client::new(node.demo(), WITH_BATCHES);
    let response = post(&client, &json!([client.message("ping", json!({}))])).await?;
    check::status(&response, 400)?;
    let text = response.text().await?;
    ensure!(text.to_lowercase().contains("session"), "not about the session: {text}");
    Ok(())
}

/// Of one client with a key: permissions, a limit and the audit log decide about each member, also about
/// members with the same id.
#[tokio::test]
async fn each_member_is_judged_limited_and_recorded_by_itself() -> Result<()> {
    let key = format!("rhk_{}", "1".repeat(64));
    let settings = format!(
        "[tenants.demo]
         auth = 'keys'
         [tenants.demo.keys.ada]
         sha256 = '{}'
         [tenants.demo.permissions.all]
         tools = ['test_simple_*', 'rh_echo']
         [tenants.demo.rates.echoes]
         rate = '1/h'
         tools = ['rh_echo']
         [tenants.demo.backends.main]
         kind = 'native'
         name = 'everything'
        ",
        check::sha256(&key)
    );
    let log = Log::new()?;
    let node = Node::start(&log.of(Setup::config(settings)))?;
    let client = Client::new(node.demo(), WITH_BATCHES).with_key(&key).opened(json!({})).await?;
    let call = |id: &str, tool: &str| {
        let mut call = client.call(tool, json!({}));
        call["id"] = json!(id);
        call
    };
    let notify =
        json!({ "jsonrpc": "2.0", "method": "tools/call", "params": { "name": "rh_crash" } });
    let batch = json!([
        call("allowed", "test_simple_text"),
        call("first", "rh_echo"),
        call("twice", "rh_echo"),
        call("twice", "rh_crash"),
        call("denied", "rh_crash"),
        client.message("tools/list", json!({})),
        notify,
    ]);
    let answers = answers(post(&client, &batch).await?).await?;
    let codes = |id: &str| -> Vec<Option<i64>> {
        let of = answers.iter().filter(|answer| answer["id"] == id);
        let mut codes: Vec<_> = of.map(|answer| answer["error"]["code"].as_i64()).collect();
        codes.sort_unstable();
        codes
    };
    ensure!(codes("allowed") == [None] && codes("first") == [None], "{answers:?}");
    ensure!(codes("twice") == [Some(-32602), Some(-32000)], "{answers:?}");
    ensure!(codes("denied") == [Some(-32602)], "{answers:?}");
    let lists = answers.iter().filter_map(|answer| answer["result"]["tools"].as_array());
    let names: Vec<_> = lists.flatten().filter_map(|tool| tool["name"].as_str()).collect();
    let may_see = |name: &&str| name.starts_with("test_simple_") || *name == "rh_echo";
    ensure!(names.len() > 1 && names.iter().all(may_see), "{names:?}");
    for tool in ["test_simple_text", "rh_echo"] {
        let begin = log.one(|record| is_begin(record, tool)).await?;
        ensure!(begin["subject"] == "ada", "{begin}");
        log.end_of(&begin).await?;
    }
    let refused = log.find(4, |record| record["kind"] == "refused").await?;
    let reasons = |reason: &str, tool: &str| {
        refused.iter().filter(|one| one["reason"] == reason && one["tool"] == tool).count()
    };
    ensure!(reasons("limits", "rh_echo") == 1, "{refused:?}");
    ensure!(reasons("permissions", "rh_crash") == 2, "{refused:?}");
    // The notification names no tool in its record.
    let notified = |one: &&Value| one["reason"] == "permissions" && one.get("tool").is_none();
    ensure!(refused.iter().filter(notified).count() == 1, "{refused:?}");
    ensure!(refused.iter().all(|one| one["subject"] == "ada"), "{refused:?}");
    Ok(())
}

async fn post(client: &Client, body: &Value) -> Result<Response> {
    Ok(client.http(Method::POST).json(body).send().await?)
}

/// The responses in an answer, either an array or a stream.
async fn answers(response: Response) -> Result<Vec<Value>> {
    check::status(&response, 200)?;
    if check::header(&response, "content-type")?.starts_with("application/json") {
        return Ok(response.json().await?);
    }
    let messages = tests::mcp::messages(&Events::of(response)?.rest().await?);
    Ok(messages.into_iter().filter(is_response).collect())
}

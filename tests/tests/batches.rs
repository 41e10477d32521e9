//! Batches: accepted if 2025-03-26 was negotiated, refused for every other revision.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use reqwest::{Method, Response};
use serde_json::{Value, json};
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

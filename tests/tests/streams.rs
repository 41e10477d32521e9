//! Streams of Streamable HTTP: when they open, when they end, and which events a client gets after
//! a cut.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::mcp::{Client, DRAFT, REVISIONS, is_response, messages};
use tests::sse::{Block, End, Events};
use tests::{Node, Setup, check};

/// The newest published revision with a handshake.
const NEWEST: &str = "2025-11-25";

/// Long enough to detect a message that must not come.
const WHILE: Duration = Duration::from_millis(400);

/// A call that reports its progress five times.
fn counting(client: &Client, interval_ms: u64) -> Value {
    client.call_with_progress("rh_count", json!({"n": 5, "interval_ms": interval_ms}), json!("t"))
}

// holds: SSE-02, SSE-03, SSE-04, POST-12
#[tokio::test]
async fn streams_with_priming_begin_with_an_id_and_end_after_the_response() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        for revision in [NEWEST, DRAFT] {
            let client = Client::open(node.demo(), revision).await?;
            let mut stream = client.stream(counting(&client, 5)).await?;
            let blocks = stream.rest().await?;
            ensure!(stream.end == Some(End::Proper));
            let first = &blocks[0];
            ensure!(first.id.is_some() && first.data.as_deref() == Some(""), "{first:?}");
            ensure!(first.retry.is_some(), "the first block has no retry: {first:?}");
            let ids = ids(&blocks);
            ensure!(ids.len() == blocks.len() && distinct(&ids), "{ids:?}");
            let streams: HashSet<_> = ids.iter().map(|id| id.split('.').next()).collect();
            ensure!(streams.len() == 1, "ids of one stream: {ids:?}");
            counted(&messages(&blocks))?;
        }
    }
    Ok(())
}

// holds: SSE-04
#[tokio::test]
async fn older_revisions_get_no_event_without_data() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        for revision in ["2025-03-26", "2025-06-18"] {
            let client = Client::open(node.demo(), revision).await?;
            let mut stream = client.stream(counting(&client, 5)).await?;
            let blocks = stream.rest().await?;
            for block in &blocks {
                ensure!(block.data.as_deref().is_some_and(|data| !data.is_empty()), "{block:?}");
            }
            counted(&messages(&blocks))?;
            let mut listening = client.listen().await?;
            ensure!(listening.is_quiet_for(WHILE).await?);
        }
    }
    Ok(())
}

// holds: POST-17
#[tokio::test]
async fn no_proxy_may_hold_a_stream_back() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let post = client.stream(counting(&client, 1)).await?;
        for stream in [post, client.listen().await?] {
            ensure!(stream.headers().get("x-accel-buffering").is_some_and(|value| value == "no"));
            let cache = stream.headers().get("cache-control").context("no cache-control")?;
            ensure!(cache.to_str()?.contains("no-cache"), "{cache:?}");
        }
    }
    Ok(())
}

// holds: POST-10, POST-11
#[tokio::test]
async fn an_answer_is_json_unless_something_comes_before_it() -> Result<()> {
    let node = Node::start(&Setup::fixture())?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let quick = client.send(client.call("test_simple_text", json!({}))).await?;
        ensure!(check::header(&quick, "content-type")?.starts_with("application/json"));
        let talks = client.send(counting(&client, 1)).await?;
        ensure!(check::header(&talks, "content-type")?.starts_with("text/event-stream"));
    }
    Ok(())
}

// holds: POST-10
#[tokio::test]
async fn a_silent_call_becomes_a_stream_in_time_where_streams_can_be_resumed() -> Result<()> {
    let node = Node::start(&Setup::demo().with("sessions.sse_after_ms", 100))?;
    let call = |client: &Client| client.call("rh_sleep", json!({"ms": 600}));
    let client = Client::open(node.demo(), NEWEST).await?;
    let mut stream = client.stream(call(&client)).await?;
    let first = stream.next().await?.context("nothing came")?;
    ensure!(first.id.is_some() && first.data.as_deref() == Some(""), "{first:?}");
    let (_, word) = stream.message().await?.context("no response")?;
    ensure!(word["result"]["content"][0]["text"] == "slept 600 ms", "{word}");

    let older = Client::open(node.demo(), "2025-06-18").await?;
    let response = older.send(call(&older)).await?;
    ensure!(check::header(&response, "content-type")?.starts_with("application/json"));
    Ok(())
}

// holds: SSE-13
#[tokio::test]
async fn streams_on_which_nothing_happens_are_kept_open_by_comments() -> Result<()> {
    let node = Node::start(&Setup::demo().with("sessions.keepalive_secs", 1))?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let post = client.stream(client.call("rh_sleep", json!({"ms": 4_000}))).await?;
        for mut stream in [post, client.listen().await?] {
            let mut comments = 0;
            while comments < 2 {
                let block = stream.next().await?.context("the stream ended")?;
                comments += usize::from(!block.comments.is_empty());
            }
        }
    }
    Ok(())
}

// holds: SSE-07, SSE-11, SSE-09
#[tokio::test]
async fn a_resume_after_any_event_gives_exactly_the_rest_as_often_as_it_is_asked_for() -> Result<()>
{
    let node = Node::start(&Setup::demo())?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let blocks = client.stream(counting(&client, 5)).await?.rest().await?;
        let all: Vec<&Block> = blocks.iter().filter(|block| block.message().is_some()).collect();
        for seen in 0..all.len() - 1 {
            let cursor = all[seen].id.as_deref().context("an event without id")?;
            let mut again = Vec::new();
            for _ in 0..2 {
                let mut stream = client.resume(cursor).await?;
                let rest = stream.rest().await?;
                ensure!(stream.end == Some(End::Proper));
                let rest: Vec<Block> =
                    rest.into_iter().filter(|block| block.message().is_some()).collect();
                let due: Vec<Block> =
                    all[seen + 1..].iter().map(|block| (*block).clone()).collect();
                ensure!(payloads(&rest) == payloads(&due), "after {cursor}: {rest:?}");
                again.push(rest);
            }
            ensure!(again[0] == again[1], "a second resume differs: {again:?}");
        }
    }
    Ok(())
}

// holds: POST-16, SSE-07
#[tokio::test]
async fn a_call_goes_on_without_its_connection_and_a_resume_carries_on_live() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        for revision in REVISIONS {
            let client = Client::open(node.demo(), revision).await?;
            let mut stream = client.stream(counting(&client, 60)).await?;
            let mut seen = Vec::new();
            let cursor = loop {
                let (block, message) = stream.message().await?.context("the stream ended")?;
                seen.push(message);
                if seen.len() == 2 {
                    break block.id.context("an event without id")?;
                }
            };
            drop(stream);
            let mut resumed = client.resume(&cursor).await?;
            seen.extend(messages(&resumed.rest().await?));
            ensure!(resumed.end == Some(End::Proper));
            counted(&seen).with_context(|| revision.to_owned())?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_resumed_stream_first_says_where_it_stands() -> Result<()> {
    // A client whose connection is cut before the first new event must have an id to resume from.
    let node = Node::start(&Setup::demo())?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let mut stream = client.stream(counting(&client, 100)).await?;
    let (block, _) = stream.message().await?.context("the stream ended")?;
    let cursor = block.id.context("an event without id")?;
    drop(stream);
    let mut resumed = client.resume(&cursor).await?;
    let first = resumed.next().await?.context("the stream ended")?;
    ensure!(first.id.as_deref() == Some(cursor.as_str()), "{first:?}");
    ensure!(first.retry.is_some() && first.data.as_deref() == Some(""), "{first:?}");
    Ok(())
}

// holds: SSE-08, SSE-01, PRG-03, PRG-04, POST-14
#[tokio::test]
async fn two_streams_never_mix_neither_live_nor_resumed() -> Result<()> {
    let node = Node::start(&Setup::fixture())?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let call = |token: i64| {
            client.call_with_progress("rh_count", json!({"n": 5, "interval_ms": 10}), json!(token))
        };
        let (left, right) = (call(1), call(2));
        let mut streams = [client.stream(left.clone()).await?, client.stream(right.clone()).await?];
        for (stream, call) in streams.iter_mut().zip([left, right]) {
            let live = stream.rest().await?;
            let first = live.iter().find_map(|block| block.id.clone()).context("no id")?;
            let resumed = client.resume(&first).await?.rest().await?;
            for message in messages(&live).iter().chain(&messages(&resumed)) {
                belongs(message, &call)?;
            }
        }
    }
    Ok(())
}

// holds: SSE-09
#[tokio::test]
async fn a_post_with_a_last_event_id_is_a_plain_post() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let blocks = client.stream(counting(&client, 1)).await?.rest().await?;
    let cursor = blocks[0].id.clone().context("no id")?;
    let ping = client.message("ping", json!({}));
    let post = client.http(reqwest::Method::POST).header("Last-Event-ID", cursor);
    let pong: Value = post.json(&ping).send().await?.json().await?;
    ensure!(pong["result"] == json!({}) && pong["id"] == ping["id"], "{pong}");
    Ok(())
}

// holds: SSE-10
#[tokio::test]
async fn an_event_id_that_is_not_the_sessions_is_refused() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let other = Client::open(node.demo(), revision).await?;
        let theirs = other.stream(counting(&other, 1)).await?.rest().await?;
        let theirs = theirs.last().and_then(|block| block.id.clone()).context("no id")?;
        let own = client.stream(counting(&client, 1)).await?.rest().await?;
        let own = own.last().and_then(|block| block.id.clone()).context("no id")?;
        let (stream, rest) = own.split_once('.').context("an id of another shape")?;
        let (owner_tag, _) = rest.split_once('-').context("an id of another shape")?;
        let made_up = [
            "bogus".to_owned(),
            "1".to_owned(),
            theirs,
            format!("{stream}.{owner_tag}-999999"),
            format!("999999.{rest}"),
            format!("{own}0000000000000000000000000000000000000000000000000"),
        ];
        for id in made_up {
            let status = client.get(Some(&id)).await?.status();
            ensure!(status == 400, "{id}: {status}");
        }
        client.is_well().await?;
    }
    Ok(())
}

// holds: GET-02
#[tokio::test]
async fn a_resume_past_the_last_event_of_a_finished_stream_is_told_that_nothing_comes() -> Result<()>
{
    let node = Node::start(&Setup::demo())?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let blocks = client.stream(counting(&client, 1)).await?.rest().await?;
        let last = blocks.last().and_then(|block| block.id.as_deref()).context("no id")?;
        let response = client.get(Some(last)).await?;
        check::status(&response, 405)?;
        check::header(&response, "allow")?;
    }
    Ok(())
}

// holds: GET-01, GET-05, TOOL-12, RES-06
#[tokio::test]
async fn what_belongs_to_no_request_comes_on_the_standalone_stream() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        for revision in REVISIONS {
            let client = Client::open(node.demo(), revision).await?;
            let mut listening = client.listen().await?;
            let touch = client.tool("rh_touch_resource", json!({})).await?;
            ensure!(
                touch["content"][0]["text"] == "no client is subscribed to the resource",
                "{touch}"
            );
            let watched = json!({"uri": "test://watched-resource"});
            let subscribed = client.request("resources/subscribe", watched.clone()).await?;
            ensure!(subscribed["result"] == json!({}), "{subscribed}");
            for (tool, method) in [
                ("rh_toggle_tool", "notifications/tools/list_changed"),
                ("rh_touch_resource", "notifications/resources/updated"),
            ] {
                let response = client.send(client.call(tool, json!({}))).await?;
                let word = tests::mcp::final_response(response).await?;
                ensure!(is_response(&word), "{word}");
                let (_, told) = listening.message().await?.context("the stream ended")?;
                ensure!(told["method"] == method, "{told}");
            }
            let unsubscribed = client.request("resources/unsubscribe", watched).await?;
            ensure!(unsubscribed["result"] == json!({}), "{unsubscribed}");
            client.tool("rh_touch_resource", json!({})).await?;
            ensure!(listening.is_quiet_for(WHILE).await?);
        }
    }
    Ok(())
}

// holds: GET-04
#[tokio::test]
async fn responses_never_come_on_a_standalone_stream() -> Result<()> {
    let node = Node::start(&Setup::fixture())?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let mut listening = client.listen().await?;
        let mut stream = client.stream(counting(&client, 5)).await?;
        counted(&messages(&stream.rest().await?))?;
        client.is_well().await?;
        ensure!(listening.is_quiet_for(WHILE).await?);
    }
    Ok(())
}

// holds: SSE-01, GET-09, SSE-02
#[tokio::test]
async fn each_message_is_on_exactly_one_of_several_streams() -> Result<()> {
    let node = Node::start(&Setup::fixture())?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let mut streams = [client.listen().await?, client.listen().await?];
        let mut ids = Vec::new();
        let post = client.stream(counting(&client, 20)).await?;
        for _ in 0..10 {
            client.tool("rh_toggle_tool", json!({})).await?;
        }
        let mut heard = 0;
        for stream in &mut streams {
            while let Some(Some(block)) = stream.next_within(WHILE).await? {
                ids.extend(block.id.clone());
                // The server also logs its counting. With two calls in flight, a log line belongs
                // to neither of them and may come here.
                let is_change = |told: &Value| told["method"] == "notifications/tools/list_changed";
                heard += usize::from(block.message().is_some_and(|told| is_change(&told)));
            }
        }
        ensure!(heard == 10, "{heard} of 10 changes were received");
        let mut post = post;
        for block in post.rest().await? {
            ids.extend(block.id);
        }
        ensure!(distinct(&ids), "ids come twice in one session: {ids:?}");
    }
    Ok(())
}

#[tokio::test]
async fn what_a_cut_standalone_stream_missed_comes_with_its_resume() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let mut listening = client.listen().await?;
        client.tool("rh_toggle_tool", json!({})).await?;
        let (block, _) = listening.message().await?.context("the stream ended")?;
        let cursor = block.id.context("an event without id")?;
        drop(listening);
        for _ in 0..3 {
            client.tool("rh_toggle_tool", json!({})).await?;
        }
        let mut resumed = client.resume(&cursor).await?;
        for _ in 0..3 {
            let (_, told) = resumed.message().await?.context("the stream ended")?;
            ensure!(told["method"] == "notifications/tools/list_changed", "{told}");
        }
        ensure!(resumed.is_quiet_for(WHILE).await?);
    }
    Ok(())
}

// holds: GET-07, SSE-05
#[tokio::test]
async fn a_stream_that_is_closed_early_said_when_to_come_back() -> Result<()> {
    let node = Node::start(&Setup::demo().with("sessions.standalone_max", 2))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let mut first = client.listen().await?;
    let mut others: Vec<Events> = Vec::new();
    for _ in 0..2 {
        others.push(client.listen().await?);
    }
    let blocks = first.rest().await?;
    ensure!(first.end == Some(End::Proper));
    ensure!(blocks.iter().any(|block| block.id.is_some()), "no id before the end: {blocks:?}");
    ensure!(blocks.iter().any(|block| block.retry.is_some()), "no retry: {blocks:?}");
    for other in &mut others {
        ensure!(other.is_quiet_for(WHILE).await? && other.end.is_none());
    }
    Ok(())
}

// holds: POST-13
#[tokio::test]
async fn streams_of_older_revisions_stay_open_until_the_response() -> Result<()> {
    let node = Node::start(&Setup::fixture())?;
    let client = Client::open(node.demo(), "2025-03-26").await?;
    let mut stream = client.stream(client.call("test_reconnection", json!({}))).await.ok();
    if let Some(stream) = &mut stream {
        ensure!(messages(&stream.rest().await?).last().is_some_and(is_response));
    }
    let mut stream = client.stream(counting(&client, 100)).await?;
    counted(&messages(&stream.rest().await?))
}

fn ids(blocks: &[Block]) -> Vec<String> {
    blocks.iter().filter_map(|block| block.id.clone()).collect()
}

fn distinct(ids: &[String]) -> bool {
    ids.iter().collect::<HashSet<_>>().len() == ids.len()
}

fn payloads(blocks: &[Block]) -> Vec<(Option<&str>, Option<&str>)> {
    blocks.iter().map(|block| (block.id.as_deref(), block.data.as_deref())).collect()
}

/// Five steps of progress in order, five log lines in order, and then the response.
fn counted(messages: &[Value]) -> Result<()> {
    let of = |method: &str, field: &dyn Fn(&Value) -> Option<f64>| -> Vec<f64> {
        messages.iter().filter(|message| message["method"] == method).filter_map(field).collect()
    };
    let steps = of("notifications/progress", &|message| message["params"]["progress"].as_f64());
    let lines = of("notifications/message", &|message| message["params"]["data"]["count"].as_f64());
    let all = [1.0, 2.0, 3.0, 4.0, 5.0];
    ensure!(steps == all && lines == all, "{messages:?}");
    let last = messages.last().context("nothing came")?;
    ensure!(last["result"]["content"][0]["text"] == "counted to 5", "{messages:?}");
    ensure!(messages.len() == 11, "{messages:?}");
    Ok(())
}

/// A message on the stream of a call must belong to that call.
fn belongs(message: &Value, call: &Value) -> Result<()> {
    if is_response(message) {
        ensure!(message["id"] == call["id"], "{message} answers another call than {call}");
    } else if message["method"] == "notifications/progress" {
        let token = &call["params"]["_meta"]["progressToken"];
        ensure!(&message["params"]["progressToken"] == token, "{message} is not of {call}");
    } else {
        // A log line does not name its call.
        ensure!(message["method"] == "notifications/message", "{message}");
    }
    Ok(())
}

//! Widely used clients against one node: the TypeScript SDK (1.x and 2.x) and the Python SDK (1.x
//! and 2.x), unchanged. The tests of rmcp's client are in another file.
//!
//! All four clients run every scenario, against the fixture in process and as a program.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::program::{Program, Seen};
use tests::proxy::{Cut, Proxy};
use tests::{Node, Setup};

const ALL: [Program; 4] =
    [Program::TypeScript1, Program::TypeScript2, Program::Python1, Program::Python2];

// holds: RPC-07, RPC-10, VER-01
#[tokio::test]
async fn every_client_takes_the_tour() -> Result<()> {
    everywhere("tour", async |program, seen| {
        let connected = seen.one("connected")?;
        ensure!(connected["revision"] == "2025-11-25", "{connected}");
        let tools = seen.one("tools")?["names"].as_array().context("no names")?;
        ensure!(tools[0] == "test_simple_text" && tools.len() > 10, "{tools:?}");
        let resources = seen.one("resources")?["uris"].as_array().context("no uris")?;
        ensure!(resources.contains(&json!("test://static-text")), "{resources:?}");
        let prompts = seen.one("prompts")?["names"].as_array().context("no names")?;
        ensure!(prompts.contains(&json!("test_simple_prompt")), "{prompts:?}");
        let read = &seen.one("read")?["text"];
        ensure!(read == "This is the content of the static text resource.", "{read}");
        ensure!(seen.one("prompt")?["text"] == "This is a simple prompt for testing.");
        let result = &seen.one("result")?["text"];
        ensure!(result == "This is a simple text response for testing.", "{result}");
        seen.one("pong")?;
        ensure!(seen.one("error")?["code"] == -32602, "{program:?}: {seen:?}");
        seen.one("terminated").map(drop)
    })
    .await
}

// holds: PRG-01, PRG-02
#[tokio::test]
async fn every_client_sees_all_progress_in_order() -> Result<()> {
    everywhere("count", async |_, seen| counted(seen, &Value::Null)).await
}

// holds: PRG-04
#[tokio::test]
async fn progress_of_two_calls_at_once_does_not_mix() -> Result<()> {
    everywhere("two", async |_, seen| {
        for who in ["left", "right"] {
            ensure!(steps(seen, &json!(who)) == (1..=10).map(f64::from).collect::<Vec<_>>());
        }
        Ok(())
    })
    .await
}

// holds: SMP-01
#[tokio::test]
async fn every_client_lends_its_model() -> Result<()> {
    everywhere("sampling", async |_, seen| {
        let asked = seen.one("asked")?;
        ensure!(asked["messages"][0]["content"]["text"] == "What is it?", "{asked}");
        ensure!(seen.one("result")?["text"] == "LLM response: forty-two", "{seen:?}");
        Ok(())
    })
    .await
}

// holds: ELI-01, ELI-03
#[tokio::test]
async fn every_client_asks_its_user() -> Result<()> {
    everywhere("elicitation", async |_, seen| {
        let asked = seen.one("asked")?;
        ensure!(asked["message"] == "Who are you?", "{asked}");
        ensure!(asked["schema"]["required"] == json!(["username", "email"]), "{asked}");
        let text = seen.one("result")?["text"].as_str().context("no text")?;
        ensure!(text.contains("accept") && text.contains("ada@example.com"), "{text}");
        Ok(())
    })
    .await
}

// holds: CAN-01, CAN-04
#[tokio::test]
async fn every_client_can_give_up_on_a_call_and_the_server_hears_of_it() -> Result<()> {
    everywhere("cancel", async |_, seen| {
        ensure!(seen.all("result").is_empty(), "a cancelled call has a result: {seen:?}");
        seen.one("error")?;
        ensure!(seen.one("after")?["cancelled"] == "1", "{seen:?}");
        Ok(())
    })
    .await
}

// holds: SSE-07, POST-16
#[tokio::test]
async fn a_cut_in_mid_call_loses_and_doubles_nothing() -> Result<()> {
    for after in [1, 4, 10] {
        cut(&[("notifications/progress", after)]).await?;
    }
    Ok(())
}

// holds: SSE-07, SSE-09
#[tokio::test]
async fn a_second_cut_of_the_resumed_stream_loses_and_doubles_nothing() -> Result<()> {
    cut(&[("notifications/progress", 2), ("notifications/progress", 3)]).await
}

/// Runs `count` over a connection that is cut, with every client and both kinds of fixture.
async fn cut(cuts: &[(&str, usize)]) -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup.with("sessions.retry_ms", 100))?;
        let one = async |program: Program| {
            let due =
                cuts.iter().map(|(needle, after)| Cut { needle: (*needle).into(), after: *after });
            let proxy = Proxy::start(&node.base, due.collect()).await?;
            let seen = program.play(&format!("{}/demo/mcp", proxy.base), "count").await?;
            ensure!(proxy.cuts() == cuts.len(), "{program:?}: {} cuts", proxy.cuts());
            let seen = if cuts.len() > 1 { once(program, seen) } else { seen };
            counted(&seen, &Value::Null).with_context(|| format!("{program:?}, {cuts:?}"))
        };
        let [a, b, c, d] = ALL;
        tokio::try_join!(one(a), one(b), one(c), one(d))?;
    }
    Ok(())
}

/// After a second cut, the Python clients resume with the event id of the first, and so receive
/// the events in between again; a server cannot prevent that. Repeated lines count once.
fn once(program: Program, seen: Seen) -> Seen {
    if !matches!(program, Program::Python1 | Program::Python2) {
        return seen;
    }
    let mut kept: Vec<Value> = Vec::new();
    for line in seen.0 {
        if !kept.contains(&line) {
            kept.push(line);
        }
    }
    Seen(kept)
}

/// Runs a scenario with every client, against both kinds of fixture.
async fn everywhere(
    scenario: &str,
    judge: impl AsyncFn(Program, &Seen) -> Result<()>,
) -> Result<()> {
    for (kind, setup) in [("native", Setup::demo()), ("stdio", Setup::fixture())] {
        let node = Node::start(&setup)?;
        let one = async |program: Program| {
            let seen = program.play(&node.demo(), scenario).await?;
            judge(program, &seen).await.with_context(|| format!("{program:?}, {kind}: {seen:?}"))
        };
        let [a, b, c, d] = ALL;
        tokio::try_join!(one(a), one(b), one(c), one(d))?;
    }
    Ok(())
}

/// The steps of a call and its log lines come once each; the steps also come in order.
fn counted(seen: &Seen, who: &Value) -> Result<()> {
    let all: Vec<f64> = (1..=10).map(f64::from).collect();
    ensure!(steps(seen, who) == all, "progress: {seen:?}");
    let lines = seen.all("log");
    // A log line belongs to no request, so two streams may carry log lines at the same time.
    let mut lines: Vec<f64> =
        lines.iter().filter_map(|line| line["data"]["count"].as_f64()).collect();
    lines.sort_by(f64::total_cmp);
    ensure!(lines == all, "log: {seen:?}");
    ensure!(seen.one("result")?["text"] == "counted to 10", "{seen:?}");
    Ok(())
}

fn steps(seen: &Seen, who: &Value) -> Vec<f64> {
    let steps = seen.all("progress");
    steps
        .iter()
        .filter(|step| step["who"] == *who)
        .filter_map(|step| step["progress"].as_f64())
        .collect()
}

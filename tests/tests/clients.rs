//! Widely used clients against one node: the TypeScript SDK (1.x and 2.x) and the Python SDK (1.x
//! and 2.x), unchanged. The tests of rmcp's client are in another file.
//!
//! All four clients run every scenario, against the fixture in process and as a program, and the first
//! ones also against the fixture over HTTP, alone and in a catalog.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::http_servers::{HttpServer, Kind};
use tests::program::{Program, Seen};
use tests::proxy::{Cut, Proxy};
use tests::{Node, Setup, tools};

const ALL: [Program; 4] =
    [Program::TypeScript1, Program::TypeScript2, Program::Python1, Program::Python2];

// holds: RPC-07, RPC-10, VER-01
#[tokio::test]
async fn every_client_takes_the_tour() -> Result<()> {
    everywhere("tour", async |_, seen| toured(seen)).await
}

// holds: RPC-07, RPC-10, PRG-01, ELI-01
#[tokio::test]
async fn every_client_uses_a_server_over_http_and_a_catalog() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let real = HttpServer::start(Kind::Everything).await?;
    let kinds = [
        ("http", Setup::in_front_of(&upstream.demo())),
        ("catalog", catalog(&upstream.demo(), &real.url())),
    ];
    for (kind, setup) in kinds {
        let node = Node::start(&setup)?;
        every_client(kind, &node, "tour", &async |_, seen| toured(seen)).await?;
        every_client(kind, &node, "elicitation", &async |_, seen| elicited(seen)).await?;
        every_client(kind, &node, "count", &async |_, seen| counted(seen, &Value::Null)).await?;
    }
    Ok(())
}

/// The fixture over HTTP, whose names have no prefix, the fixture as a program, and a server from npm.
fn catalog(fixture: &str, real: &str) -> Setup {
    let program = tools::built("everything").display().to_string();
    let networks = "allow_networks = [\"127.0.0.0/8\"]";
    Setup::config(format!(
        "[tenants.demo]\nauth = \"open\"\n\
         [tenants.demo.backends.far]\nkind = \"http\"\nurl = \"{fixture}\"\n{networks}\n\
         prefix = \"\"\n\
         [tenants.demo.backends.prog]\nkind = \"stdio\"\ncommand = {program:?}\n\
         [tenants.demo.backends.real]\nkind = \"http\"\nurl = \"{real}\"\n{networks}\n"
    ))
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
    everywhere("elicitation", async |_, seen| elicited(seen)).await
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
        every_client(kind, &Node::start(&setup)?, scenario, &judge).await?;
    }
    Ok(())
}

/// Runs a scenario with every client at one node.
async fn every_client(
    kind: &str,
    node: &Node,
    scenario: &str,
    judge: &impl AsyncFn(Program, &Seen) -> Result<()>,
) -> Result<()> {
    let one = async |program: Program| {
        let seen = program.play(&node.demo(), scenario).await?;
        judge(program, &seen).await.with_context(|| format!("{program:?}, {kind}: {seen:?}"))
    };
    let [a, b, c, d] = ALL;
    tokio::try_join!(one(a), one(b), one(c), one(d)).map(drop)
}

/// What the scenario `tour` shows.
fn toured(seen: &Seen) -> Result<()> {
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
    ensure!(seen.one("error")?["code"] == -32602, "{seen:?}");
    seen.one("terminated").map(drop)
}

/// What the scenario `elicitation` shows.
fn elicited(seen: &Seen) -> Result<()> {
    let asked = seen.one("asked")?;
    ensure!(asked["message"] == "Who are you?", "{asked}");
    ensure!(asked["schema"]["required"] == json!(["username", "email"]), "{asked}");
    let text = seen.one("result")?["text"].as_str().context("no text")?;
    ensure!(text.contains("accept") && text.contains("ada@example.com"), "{text}");
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

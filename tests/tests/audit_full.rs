//! The audit log of whole nodes while the disk is full, or hangs.

use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::audit_log::{Log, is_begin};
use tests::mcp::{Client, final_response};
use tests::{Node, Setup, check};
use tokio::time::{sleep, timeout};

const NEWEST: &str = "2025-11-25";

/// Opens a pipe that has no writer yet.
const O_NONBLOCK: i32 = 0o4000;

#[tokio::test]
async fn with_block_calls_are_refused_while_the_disk_is_full_and_everything_else_goes_on()
-> Result<()> {
    let log = Log::new()?;
    let node = Node::start(&log.of(Setup::demo()).with("audit.hold_ms", 300))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    client.is_well().await?;
    // As if the disk was full from now on.
    std::fs::rename(log.path(), log.folder.path().join("before"))?;
    symlink("/dev/full", log.path())?;
    let until = Instant::now() + Duration::from_secs(20);
    let refused = loop {
        let began = Instant::now();
        let response = client.send(client.call("rh_echo", json!({ "text": "x" }))).await?;
        // Another status would end some clients.
        check::status(&response, 200)?;
        let answer = final_response(response).await?;
        if answer.get("error").is_some() {
            ensure!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
            break answer;
        }
        ensure!(Instant::now() < until, "calls go on without records: {}", node.output());
        sleep(Duration::from_millis(50)).await;
    };
    ensure!(refused["error"]["code"] == -32000, "{refused}");
    let text = refused["error"]["message"].as_str().context("no message")?;
    ensure!(text.contains("audit record"), "{refused}");
    let pong = client.request("ping", json!({})).await?;
    ensure!(pong["result"] == json!({}), "{pong}");
    let newcomer = Client::new(node.demo(), NEWEST);
    let initialize = newcomer.message("initialize", newcomer.introduction(json!({})));
    let response = newcomer.send(initialize).await?;
    check::status(&response, 503)?;
    check::header(&response, "retry-after")?;
    let ready = reqwest::get(format!("{}/readyz", node.admin)).await?;
    check::status(&ready, 503)?;
    ensure!(ready.text().await?.contains("audit records cannot be written"));
    ensure!(node.metric("roundhouse_audit_failing").await? == Some(1.0));
    ensure!(node.metric("roundhouse_audit_refused_total").await? >= Some(2.0));
    node.logs("audit records cannot be written").await?;
    // There is room again.
    std::fs::remove_file(log.path())?;
    let until = Instant::now() + Duration::from_secs(20);
    while client.ask(client.call("test_simple_text", json!({}))).await?.get("error").is_some() {
        ensure!(Instant::now() < until, "{}", node.output());
    }
    let unrecorded = |r: &Value| r["kind"] == "end" && r["reason"] == "audit";
    let until = Instant::now() + Duration::from_secs(20);
    while !log.records()?.iter().any(unrecorded) {
        ensure!(Instant::now() < until, "{:?}", log.records()?);
        sleep(Duration::from_millis(20)).await;
    }
    check::status(&reqwest::get(format!("{}/readyz", node.admin)).await?, 200)?;
    Ok(())
}

#[tokio::test]
async fn with_drop_calls_go_on_while_the_disk_is_full_and_each_tenants_gap_is_counted() -> Result<()>
{
    let log = Log::new()?;
    let tenant = |name: &str| {
        format!(
            "[tenants.{name}]\nauth = 'open'\n\
             [tenants.{name}.backends.main]\nkind = 'native'\nname = 'everything'\n"
        )
    };
    symlink("/dev/full", log.path())?;
    let setup = Setup::config(tenant("demo") + &tenant("quiet"))
        .with("audit.when_full", "drop")
        .with("audit.hold_ms", 200)
        .with("audit.tenant_queue_records_max", 20);
    let node = Node::start(&log.of(setup))?;
    let loud = Client::open(node.demo(), NEWEST).await?;
    let quiet = Client::open(node.mcp("quiet"), NEWEST).await?;
    for _ in 0..50 {
        loud.tool("test_simple_text", json!({})).await?;
    }
    let began = Instant::now();
    quiet.tool("rh_echo", json!({ "text": "q" })).await?;
    ensure!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    ensure!(node.metric("roundhouse_audit_left_out_total").await? > Some(20.0));
    let ready = reqwest::get(format!("{}/readyz", node.admin)).await?;
    check::status(&ready, 200)?;
    ensure!(ready.text().await?.contains("audit records cannot be written"));
    std::fs::remove_file(log.path())?;
    let gap = log.one(|record| record["kind"] == "left_out").await?;
    ensure!(gap["tenant"] == "demo" && gap["count"].as_u64() > Some(20), "{gap}");
    ensure!(gap["reason"] == "full", "{gap}");
    log.one(|record| is_begin(record, "rh_echo") && record["tenant"] == "quiet").await?;
    Ok(())
}

/// A pipe that is open and not read takes 64 KiB and then blocks, as a disk that hangs.
fn hanging(log: &Log) -> Result<std::fs::File> {
    let made = std::process::Command::new("mkfifo").arg(log.path()).status()?;
    ensure!(made.success());
    Ok(std::fs::OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(log.path())?)
}

#[tokio::test]
async fn a_client_that_leaves_before_its_record_is_written_has_dispatched_nothing() -> Result<()> {
    let log = Log::new()?;
    let node = Node::start(&log.of(Setup::demo()).with("audit.hold_ms", 60_000))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    std::fs::rename(log.path(), log.folder.path().join("before"))?;
    symlink("/dev/full", log.path())?;
    let until = Instant::now() + Duration::from_secs(20);
    // The node finds within a second that the file is another one.
    let call = || client.ask(client.call("rh_record", json!({ "key": "k" })));
    while timeout(Duration::from_millis(300), client.tool("rh_echo", json!({}))).await.is_ok() {
        ensure!(Instant::now() < until, "{}", node.output());
        sleep(Duration::from_millis(100)).await;
    }
    ensure!(timeout(Duration::from_millis(300), call()).await.is_err(), "the call went on");
    std::fs::remove_file(log.path())?;
    let begin = log.one(|record| is_begin(record, "rh_record")).await?;
    let end = log.end_of(&begin).await?;
    ensure!(end["outcome"] == "not_dispatched", "{end}");
    Ok(())
}

#[tokio::test]
async fn with_drop_calls_go_on_while_a_disk_hangs() -> Result<()> {
    let log = Log::new()?;
    let _reader = hanging(&log)?;
    let setup = log.of(Setup::demo()).with("audit.hold_ms", 200);
    let setup = setup.with("audit.when_full", "drop").with("audit.tenant_queue_records_max", 50);
    let node = Node::start(&setup)?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let until = Instant::now() + Duration::from_secs(60);
    while node.metric("roundhouse_audit_left_out_total").await? < Some(1.0) {
        client.tool("test_simple_text", json!({})).await?;
        ensure!(Instant::now() < until, "the pipe takes everything");
    }
    let began = Instant::now();
    for _ in 0..50 {
        client.tool("test_simple_text", json!({})).await?;
    }
    // Each of them would wait for 200 ms.
    ensure!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_disk_that_hangs_holds_calls_and_nothing_else() -> Result<()> {
    let log = Log::new()?;
    let _reader = hanging(&log)?;
    let setup = log.of(Setup::demo()).with("audit.hold_ms", 300).with("front.workers", 1);
    let node = Node::start(&setup)?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let until = Instant::now() + Duration::from_secs(60);
    while client.ask(client.call("test_simple_text", json!({}))).await?.get("error").is_none() {
        ensure!(Instant::now() < until, "the pipe takes everything");
    }
    // The thread that serves the call serves pings, streams and probes as before.
    let held = client.ask(client.call("test_simple_text", json!({})));
    let pings = async {
        for _ in 0..20 {
            let pong = client.twin().request("ping", json!({})).await?;
            ensure!(pong["result"] == json!({}), "{pong}");
        }
        anyhow::Ok(Instant::now())
    };
    let began = Instant::now();
    let (held, pinged) = tokio::join!(held, pings);
    ensure!(held?.get("error").is_some(), "the call went on");
    ensure!(pinged? - began < Duration::from_secs(5));
    check::status(&client.get(None).await?, 200)?;
    ensure!(node.metric("roundhouse_audit_refused_total").await? >= Some(2.0));
    Ok(())
}

#[tokio::test]
async fn a_drain_waits_no_longer_than_one_call_while_the_disk_is_full_and_lists_are_refused()
-> Result<()> {
    let log = Log::new()?;
    symlink("/dev/full", log.path())?;
    let hold = Duration::from_millis(1_500);
    let token = tempfile::NamedTempFile::new()?;
    std::fs::write(&token, "a-token-for-operators")?;
    let setup = log.of(Setup::demo()).with("audit.hold_ms", hold.as_millis());
    let setup = setup.with("admin.token_file", token.path().display());
    // There is no room after the first record.
    let node = Node::start(&setup.with("audit.tenant_queue_records_max", 1))?;
    let admin = |method, path: &str| {
        let request = reqwest::Client::new().request(method, format!("{}{path}", node.admin));
        request.bearer_auth("a-token-for-operators")
    };
    let listed = admin(reqwest::Method::GET, "/v1/tenants").send().await?;
    check::status(&listed, 503)?;
    ensure!(listed.text().await?.contains("audit record"));
    let began = Instant::now();
    let drained = admin(reqwest::Method::POST, "/drain?secs=0").send().await?;
    ensure!(drained.status().is_success(), "{}", drained.status());
    // Two waits would be twice as long.
    ensure!(began.elapsed() < hold * 2, "{:?}", began.elapsed());
    Ok(())
}

//! The audit log of whole nodes: what is in the file, and when.

#[path = "audit/batches.rs"]
mod batches;
#[path = "audit/operators.rs"]
mod operators;

use std::collections::{HashMap, HashSet};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::Digest as _;
use tests::audit_log::{Log, is_begin, records_of};
use tests::mcp::Client;
use tests::recorded::Recorded;
use tests::sse::Events;
use tests::{Node, Setup, check, tools};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{sleep, timeout};

const NEWEST: &str = "2025-11-25";
const WITH_BATCHES: &str = "2025-03-26";

fn digest(session: &str) -> String {
    let digest = sha2::Sha256::digest(session);
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Two clients with keys: `reader` may call one tool, `writer` every tool.
fn ruled() -> (String, String, String) {
    let [reader, writer] = ["1", "2"].map(|digit| format!("rhk_{}", digit.repeat(64)));
    let text = format!(
        "[tenants.demo]
         auth = 'keys'
         [tenants.demo.keys.reader]
         sha256 = '{}'
         [tenants.demo.keys.writer]
         sha256 = '{}'
         subject = 'ada'
         scopes = ['write']
         [tenants.demo.permissions.read]
         tools = ['test_simple_text']
         [tenants.demo.permissions.write]
         scopes = ['write']
         tools = ['*']
         prompts = ['*']
         resources = ['*']
         [tenants.demo.backends.main]
         kind = 'native'
         name = 'everything'
        ",
        check::sha256(&reader),
        check::sha256(&writer)
    );
    (reader, writer, text)
}

#[tokio::test]
async fn a_begin_is_in_the_file_while_the_tool_runs_and_an_end_afterwards() -> Result<()> {
    let log = Log::new()?;
    let script = tools::root().join("tests/servers/reader.py").display().to_string();
    let server = Setup::hosting([tools::python("py1").display().to_string(), script]);
    let setup = log.of(server).with("audit.sync", true).with("audit.hold_ms", 60_000);
    let node = Node::start(&setup)?;
    let client = Client::open(node.demo(), NEWEST).await?;
    for call in 1..6 {
        let result = client.tool("read", json!({ "path": log.path() })).await?;
        let text = result["content"][0]["text"].as_str().context("no text")?;
        let seen: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        let begins: Vec<_> = seen.iter().filter(|record| is_begin(record, "read")).collect();
        ensure!(begins.len() == call, "call {call}: {text}");
        let ended = |begin: &Value| {
            seen.iter().any(|record| record["kind"] == "end" && record["call"] == begin["call"])
        };
        ensure!(!ended(begins[call - 1]), "the end is there before the call is over: {text}");
    }
    let begins = log.find(5, |record| is_begin(record, "read")).await?;
    let ids: HashSet<_> = begins.iter().map(|begin| begin["call"].to_string()).collect();
    ensure!(ids.len() == 5, "{begins:?}");
    let session = client.session.clone().context("no session")?;
    let begin = &begins[0];
    for (key, value) in [
        ("tenant", json!("demo")),
        ("node", json!("local")),
        ("endpoint", json!("mcp")),
        ("method", json!("tools/call")),
        ("session", json!(digest(&session))),
    ] {
        ensure!(begin[key] == value, "{key}: {begin}");
    }
    let time = begin["time"].as_str().context("no time")?;
    ensure!(time.len() == 24 && time.ends_with('Z'), "{begin}");
    ensure!(begin["bytes_in"].as_u64() > Some(50) && begin.get("principal").is_none(), "{begin}");
    let end = log.end_of(begin).await?;
    ensure!(end["outcome"] == "result" && end["status"] == 200, "{end}");
    ensure!(end["ms"].as_f64() > Some(0.0) && end["bytes_out"].as_u64() > Some(50), "{end}");
    let initialize = log.one(|record| record["method"] == "initialize").await?;
    ensure!(initialize.get("session").is_none(), "{initialize}");
    ensure!(log.end_of(&initialize).await?["session"] == digest(&session));
    let text = std::fs::read_to_string(log.path())?;
    ensure!(!text.contains(&session), "the id of a session is in the file");
    ensure!(!text.contains("path"), "a payload is in the file: {text}");
    Ok(())
}

#[tokio::test]
async fn a_node_that_is_killed_leaves_the_begin_of_its_call() -> Result<()> {
    let log = Log::new()?;
    let mut node = Node::start(&log.of(Setup::demo()))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let call = client.send(client.call("rh_sleep", json!({ "ms": 60_000 })));
    let seen = log.one(|record| is_begin(record, "rh_sleep"));
    let begin = tokio::select! {
        seen = seen => seen?,
        answered = call => anyhow::bail!("the call has ended: {answered:?}"),
    };
    node.kill()?;
    let after = log.records()?;
    ensure!(after.contains(&begin), "{after:?}");
    let ended = |record: &Value| record["kind"] == "end" && record["call"] == begin["call"];
    ensure!(!after.iter().any(ended), "{after:?}");
    // The next process appends.
    let node = Node::start(&log.of(Setup::demo()))?;
    Client::open(node.demo(), NEWEST).await?;
    let calls = log.find(2, |record| record["method"] == "initialize").await?;
    ensure!(calls[0]["call"] != calls[1]["call"], "{calls:?}");
    Ok(())
}

#[tokio::test]
async fn each_member_of_a_batch_has_records_of_its_own() -> Result<()> {
    let log = Log::new()?;
    let (reader, _, text) = ruled();
    let node = Node::start(&log.of(Setup::config(text)))?;
    let client = Client::new(node.demo(), WITH_BATCHES).with_key(&reader).opened(json!({})).await?;
    let (allowed, denied) =
        (client.call("test_simple_text", json!({})), client.call("rh_echo", json!({})));
    let batch = json!([
        allowed,
        denied,
        client.message("tools/list", json!({})),
        client.message("ping", json!({})),
        client.message("no/such/method", json!({})),
        { "jsonrpc": "2.0", "method": "notifications/roots/list_changed" },
        7,
    ]);
    let answer = client.http(Method::POST).json(&batch).send().await?;
    check::status(&answer, 200)?;
    let _ = answer.text().await?;
    let begin = log.one(|record| is_begin(record, "test_simple_text")).await?;
    let id = allowed["id"].to_string();
    ensure!(begin["request"].as_str() == Some(&id), "{begin}");
    let end = log.end_of(&begin).await?;
    ensure!(end["outcome"] == "result" && end["bytes_out"].as_u64() > Some(10), "{end}");
    let refused =
        log.one(|record| record["kind"] == "refused" && record["tool"] == "rh_echo").await?;
    ensure!(refused["reason"] == "permissions" && refused["subject"] == "reader", "{refused}");
    ensure!(refused["code"] == -32602, "{refused}");
    log.one(|record| record["kind"] == "refused" && record["reason"] == "malformed").await?;
    let list = log.one(|record| record["method"] == "tools/list").await?;
    ensure!(log.end_of(&list).await?["outcome"] == "result");
    let roots = "notifications/roots/list_changed";
    ensure!(log.one(|record| record["method"] == roots).await?["kind"] == "message");
    let all = log.records()?;
    ensure!(!all.iter().any(|record| record["method"] == "ping"), "{all:?}");
    Ok(())
}

#[tokio::test]
async fn a_refusal_and_a_failed_sign_in_have_one_record_each() -> Result<()> {
    let log = Log::new()?;
    let (reader, writer, text) = ruled();
    let node = Node::start(&log.of(Setup::config(text)))?;
    let client = Client::new(node.demo(), NEWEST).with_key(&reader).opened(json!({})).await?;
    let denied = client.ask(client.call("rh_echo", json!({}))).await?;
    ensure!(denied["error"]["code"] == -32602, "{denied}");
    let refused = log.one(|record| record["kind"] == "refused").await?;
    for (key, value) in [
        ("tool", "rh_echo"),
        ("reason", "permissions"),
        ("principal", "key"),
        ("subject", "reader"),
    ] {
        ensure!(refused[key] == value, "{key}: {refused}");
    }
    ensure!(refused["session"] == digest(client.session.as_ref().context("no session")?));

    // Another client's session is not there: the call began, and was refused.
    let stranger = client.twin().with_key(&writer);
    check::status(&stranger.send(stranger.call("rh_echo", json!({}))).await?, 404)?;
    let begin = log.one(|record| is_begin(record, "rh_echo")).await?;
    ensure!(begin["subject"] == "ada" && begin["session"] == refused["session"], "{begin}");
    let end = log.end_of(&begin).await?;
    ensure!(end["outcome"] == "refused" && end["status"] == 404, "{end}");
    check::status(&stranger.get(None).await?, 404)?;
    log.one(|record| record["kind"] == "refused" && record["status"] == 404).await?;

    let mut unknown = client.twin();
    for (key, reason) in [
        (None, "no_credential"),
        (Some(format!("rhk_{}", "3".repeat(64))), "unknown_key"),
        (Some("{".to_owned()), "malformed"),
    ] {
        unknown.key = key;
        unknown.send(unknown.call("rh_echo", json!({}))).await?;
        let failed = log.one(|record| record["reason"] == reason).await?;
        ensure!(failed["kind"] == "sign_in_failed" && failed["tenant"] == "demo", "{failed}");
        ensure!(failed["status"].as_u64() >= Some(400) && failed.get("subject").is_none());
    }
    check::status(&client.delete().await?, 204)?;
    let ended = log.one(|record| record["action"] == "end_session").await?;
    ensure!(ended["kind"] == "message" && ended["subject"] == "reader", "{ended}");
    let text = std::fs::read_to_string(log.path())?;
    for secret in [&reader, &writer, &"3".repeat(64)] {
        ensure!(!text.contains(secret.as_str()), "a key is in the file");
    }
    ensure!(!text.contains(client.session.as_deref().context("no session")?));
    Ok(())
}

#[tokio::test]
async fn arguments_are_recorded_only_where_the_tenant_names_them() -> Result<()> {
    let log = Log::new()?;
    let tenant = |name: &str, fields: &str| {
        format!(
            "[tenants.{name}]\nauth = 'open'\naudit.fields = [{fields}]\n\
             [tenants.{name}.backends.main]\nkind = 'native'\nname = 'everything'\n"
        )
    };
    let text =
        tenant("demo", "'params.arguments.text', 'params.arguments.n.deep'") + &tenant("other", "");
    let node = Node::start(&log.of(Setup::config(text)))?;
    let hostile = "a\"\n{\"kind\":\"begin\"}\u{202e}";
    for tenant in ["demo", "other"] {
        let client = Client::open(node.mcp(tenant), NEWEST).await?;
        let arguments = json!({ "text": hostile, "n": { "deep": [1, 2] }, "token": "hidden" });
        client.ask(client.call("rh_echo", arguments)).await?;
        client.ask(client.call("bad\n\"name", json!({}))).await?;
    }
    let begins = log.find(2, |record| is_begin(record, "rh_echo")).await?;
    for begin in begins {
        match begin["tenant"].as_str() {
            Some("demo") => {
                let fields = json!({
                    "params.arguments.text": hostile,
                    "params.arguments.n.deep": "[1,2]",
                });
                ensure!(begin["fields"] == fields, "{begin}");
            }
            _ => ensure!(begin.get("fields").is_none(), "{begin}"),
        }
    }
    log.find(2, |record| is_begin(record, "bad\n\"name")).await?;
    let text = std::fs::read_to_string(log.path())?;
    ensure!(!text.contains("hidden") && !text.contains('\u{202e}'), "{text}");
    Ok(())
}

#[tokio::test]
async fn the_transport_of_2024_has_ends_also_if_the_post_is_at_another_node() -> Result<()> {
    let log = Log::new()?;
    let setup = || log.of(Setup::demo());
    let cluster = Recorded::start([setup(), setup()]).await?;
    let (streaming, posting) = (cluster.node(0)?, cluster.node(1)?);
    let opener = Client::new(format!("{}/demo/sse", streaming.base), "2024-11-05");
    let mut events = Events::of(opener.get(None).await?)?;
    let endpoint = events.next().await?.context("no endpoint")?;
    let path = endpoint.data.context("no data")?;
    let mut poster = Client::new(format!("{}{path}", streaming.base), "2024-11-05");
    let initialize = poster.message("initialize", poster.introduction(json!({})));
    check::status(&poster.send(initialize).await?, 202)?;
    events.message().await?.context("no answer")?;
    check::status(&poster.notify("notifications/initialized", json!({})).await?, 202)?;
    poster.url = format!("{}{path}", posting.base);
    check::status(&poster.send(poster.call("test_simple_text", json!({}))).await?, 202)?;
    events.message().await?.context("no answer")?;
    let begin = log.one(|record| is_begin(record, "test_simple_text")).await?;
    let end = log.end_of(&begin).await?;
    ensure!(end["outcome"] == "result" && begin["endpoint"] == "messages", "{begin} {end}");
    ensure!(begin["node"] != end["node"], "{begin} {end}");
    Ok(())
}

/// A session over standard streams.
struct OverStreams {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl OverStreams {
    fn start(log: &Log) -> Result<Self> {
        let mut command = Command::new(tools::built("roundhouse"));
        command.args(["stdio", "--tenant", "demo"]).kill_on_drop(true);
        command.env("ROUNDHOUSE__AUDIT__TO", "file").env("ROUNDHOUSE__AUDIT__FILE", log.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let stdin = child.stdin.take().context("no stdin")?;
        let lines = BufReader::new(child.stdout.take().context("no stdout")?).lines();
        Ok(Self { child, stdin, lines })
    }

    /// Sends a message, and waits for so many answers.
    async fn send(&mut self, message: &Value, answers: usize) -> Result<()> {
        self.stdin.write_all(format!("{message}\n").as_bytes()).await?;
        for _ in 0..answers {
            timeout(Duration::from_secs(30), self.lines.next_line())
                .await??
                .context("no answer")?;
        }
        Ok(())
    }

    async fn end(mut self) -> Result<()> {
        drop(self.stdin);
        ensure!(timeout(Duration::from_secs(30), self.child.wait()).await??.success());
        Ok(())
    }
}

#[tokio::test]
async fn a_call_over_standard_streams_is_recorded_as_well() -> Result<()> {
    let log = Log::new()?;
    let mut session = OverStreams::start(&log)?;
    let params = json!({ "protocolVersion": WITH_BATCHES, "capabilities": {},
        "clientInfo": { "name": "scenarios", "version": "1" } });
    let request = |id: i32, method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    let call = |id, tool: &str| request(id, "tools/call", json!({ "name": tool, "arguments": {} }));
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let batch = json!([call(3, "test_simple_text"), call(4, "test_error_handling")]);
    for (message, answers) in [
        (request(1, "initialize", params), 1),
        (initialized, 0),
        (call(2, "test_image_content"), 1),
        (batch, 2),
    ] {
        session.send(&message, answers).await?;
    }
    for (tool, outcome) in [
        ("test_image_content", "result"),
        ("test_simple_text", "result"),
        ("test_error_handling", "tool_error"),
    ] {
        let begin = log.one(|record| is_begin(record, tool)).await?;
        ensure!(begin["endpoint"] == "stdio", "{begin}");
        ensure!(log.end_of(&begin).await?["outcome"] == outcome);
    }
    session.end().await
}

#[tokio::test]
async fn a_rotation_under_load_loses_no_line_and_splits_none() -> Result<()> {
    let log = Log::new()?;
    let setup = log.of(Setup::demo()).with("audit.file_bytes_max", "16K");
    let setup = setup.with("audit.files_max", 10_000).with("audit.hold_ms", 60_000);
    let node = Node::start(&setup)?;
    let mut running = Vec::new();
    for _ in 0..4 {
        let client = Client::open(node.demo(), NEWEST).await?.keeping_connections();
        running.push(tokio::spawn(async move {
            for _ in 0..100 {
                client.tool("test_simple_text", json!({})).await?;
            }
            anyhow::Ok(())
        }));
    }
    for client in running {
        client.await??;
    }
    let status = node.stop(Duration::from_secs(40))?;
    ensure!(status.success(), "{status}");
    let (mut begins, mut ends, mut files) = (HashMap::new(), HashSet::new(), 0);
    for file in std::fs::read_dir(log.folder.path())? {
        let file = file?.path();
        let text = std::fs::read_to_string(&file)?;
        ensure!(text.is_empty() || text.ends_with('\n'), "{file:?} ends within a line");
        // A batch may be longer than what was left of the file.
        ensure!(text.len() < 64 << 10, "{file:?} has {} bytes", text.len());
        files += 1;
        for record in records_of(&file)? {
            let call = record["call"].to_string();
            match record["kind"].as_str() {
                Some("begin") => ensure!(begins.insert(call, record).is_none(), "twice"),
                Some("end") => ensure!(ends.insert(call), "twice: {record}"),
                _ => {}
            }
        }
    }
    ensure!(begins.len() == 404 && files > 5, "{} begins in {files} files", begins.len());
    ensure!(begins.keys().all(|call| ends.contains(call)), "{} ends", ends.len());
    Ok(())
}

#[tokio::test]
async fn records_on_standard_output_are_lines_of_their_own() -> Result<()> {
    let node = Node::start(&Setup::demo().with("audit.to", "stdout"))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    client.tool("test_simple_text", json!({})).await?;
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let output = node.output();
        let records = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let records: Vec<_> = records.collect();
        let begin = records.iter().find(|record| is_begin(record, "test_simple_text"));
        let is_end = |record: &&Value| {
            record["kind"] == "end" && begin.is_some_and(|begin| begin["call"] == record["call"])
        };
        if records.iter().any(|record| is_end(&record)) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{output}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn settings_that_cannot_work_are_named_before_the_node_starts() -> Result<()> {
    for (key, value, told) in [
        ("audit.to", "file", "`audit.file` is missing"),
        ("audit.to", "paper", "`audit.to`"),
        ("audit.file", "/nowhere/at/all/audit.jsonl", "`audit.file`"),
    ] {
        let mut setup = Setup::demo().with(key, value);
        if key == "audit.file" {
            setup = setup.with("audit.to", "file");
        }
        let error = format!("{:#}", Node::start(&setup).err().context("the node starts")?);
        ensure!(error.contains(told), "{error}");
    }
    let stdio = Command::new(tools::built("roundhouse"))
        .args(["stdio", "--tenant", "demo"])
        .env("ROUNDHOUSE__AUDIT__TO", "stdout")
        .output()
        .await?;
    let told = String::from_utf8_lossy(&stdio.stderr).into_owned();
    ensure!(!stdio.status.success() && told.contains("`audit.to` is \"stdout\""), "{told}");
    Ok(())
}

#[tokio::test]
async fn each_request_over_a_limit_is_one_record() -> Result<()> {
    let log = Log::new()?;
    let (_, writer, text) = ruled();
    let rate = "[tenants.demo.rates.echoes]\nrate = '1/h'\ntools = ['rh_echo']";
    let node = Node::start(&log.of(Setup::config(format!("{text}\n{rate}"))))?;
    let client = Client::new(node.demo(), WITH_BATCHES).with_key(&writer).opened(json!({})).await?;
    let echo = || client.call("rh_echo", json!({}));
    client.ask(echo()).await?;
    let over = client.ask(echo()).await?;
    ensure!(over["error"]["code"] == -32000, "{over}");
    let batch = json!([echo(), client.call("test_simple_text", json!({}))]);
    let answer = client.http(Method::POST).json(&batch).send().await?;
    check::status(&answer, 200)?;
    let _ = answer.text().await?;
    log.end_of(&log.one(|record| is_begin(record, "test_simple_text")).await?).await?;
    for refused in log.find(2, |record| record["kind"] == "refused").await? {
        ensure!(refused["reason"] == "limits" && refused["code"] == -32000, "{refused}");
        ensure!(refused["tool"] == "rh_echo" && refused["subject"] == "ada", "{refused}");
    }
    log.one(|record| is_begin(record, "rh_echo")).await?;
    Ok(())
}

/// What a client presented was made for it, and does not count any more.
#[tokio::test]
async fn a_failed_sign_in_of_a_known_client_names_it() -> Result<()> {
    let log = Log::new()?;
    let (_, writer, text) = ruled();
    let ended =
        text.replace("subject = 'ada'", "subject = 'ada'\nexpires = '2020-01-01T00:00:00Z'");
    let node = Node::start(&log.of(Setup::config(ended)))?;
    let client = Client::new(node.demo(), NEWEST).with_key(&writer);
    check::status(&client.send(client.call("rh_echo", json!({}))).await?, 401)?;
    let failed = log.one(|record| record["kind"] == "sign_in_failed").await?;
    ensure!(failed["reason"] == "expired_key" && failed["principal"] == "key", "{failed}");
    ensure!(failed["subject"] == "ada", "{failed}");
    Ok(())
}

#[tokio::test]
async fn each_record_has_the_trace_that_its_message_names() -> Result<()> {
    let log = Log::new()?;
    let (reader, _, text) = ruled();
    let node = Node::start(&log.of(Setup::config(text)))?;
    let client = Client::new(node.demo(), WITH_BATCHES).with_key(&reader).opened(json!({})).await?;
    let parent = |digit: &str| format!("00-{}-{}-01", digit.repeat(32), digit.repeat(16));
    let trace = |digit: &str| json!(digit.repeat(32));
    let traced = |tool: &str, digit: &str| {
        let meta = json!({ "traceparent": parent(digit) });
        client.message("tools/call", json!({ "name": tool, "arguments": {}, "_meta": meta }))
    };
    let post = async |body: Value, digit: &str, key: &str| -> Result<()> {
        let ask = client.twin().with_key(key).http(Method::POST);
        let answer = ask.header("traceparent", parent(digit)).json(&body).send().await?;
        answer.text().await?;
        Ok(())
    };
    let begun = async |digit: &str| {
        log.one(|record| record["kind"] == "begin" && record["trace"] == trace(digit)).await
    };
    // The one of the message takes precedence over that of the request.
    post(traced("test_simple_text", "a"), "b", &reader).await?;
    begun("a").await?;
    post(client.call("test_simple_text", json!({})), "c", &reader).await?;
    begun("c").await?;
    post(
        json!([traced("test_simple_text", "d"), client.message("tools/list", json!({}))]),
        "e",
        &reader,
    )
    .await?;
    begun("d").await?;
    begun("e").await?;
    post(traced("rh_echo", "f"), "b", &reader).await?;
    let refused = log.one(|record| record["kind"] == "refused").await?;
    ensure!(refused["trace"] == trace("f") && refused["reason"] == "permissions", "{refused}");
    post(traced("rh_echo", "f"), "b", "rhk_unknown").await?;
    let failed = log.one(|record| record["kind"] == "sign_in_failed").await?;
    ensure!(failed["trace"] == trace("b"), "{failed}");
    ensure!(
        !log.records()?
            .iter()
            .any(|record| record["kind"] == "begin" && record["trace"] == trace("b"))
    );
    Ok(())
}

#[tokio::test]
async fn a_refusal_over_sessions_streams_and_addresses_says_so() -> Result<()> {
    let log = Log::new()?;
    let (_, writer, text) = ruled();
    let limits = "[tenants.demo.limits]\ncluster_sessions_max = 1\ncluster_streams_max = 1";
    let rate = "trusted_proxies = ['private']\nsessions_per_address_per_sec = 1\nsessions_per_address_burst = 1";
    let setup = log.of(Setup::config(format!("[front]\n{rate}\n{text}\n{limits}")));
    let node = Node::start(&setup)?;
    let client = Client::new(node.demo(), NEWEST).with_key(&writer).opened(json!({})).await?;
    let stream = client.get(None).await?;
    check::status(&stream, 200)?;
    check::status(&client.get(None).await?, 429)?;
    let refused = log.one(|record| record["kind"] == "refused").await?;
    ensure!(refused["reason"] == "limits" && refused["status"] == 429, "{refused}");
    let old = Client::new(node.demo().replace("/mcp", "/sse"), "2024-11-05").with_key(&writer);
    check::status(&old.get(None).await?, 429)?;
    let other = Client::new(node.demo(), NEWEST).with_key(&writer);
    let initialize = || other.message("initialize", other.introduction(json!({})));
    check::status(&other.send(initialize()).await?, 429)?;
    for _ in 0..2 {
        let from = other.http(Method::POST).header("x-forwarded-for", "203.0.113.7");
        check::status(&from.json(&initialize()).send().await?, 429)?;
    }
    log.find(4, |record| record["kind"] == "refused" && record["reason"] == "limits").await?;
    let address = log.one(|record| record["reason"] == "address").await?;
    ensure!(address["subject"] == "ada" && address["kind"] == "refused", "{address}");
    Ok(())
}

//! Several servers of a tenant behind one endpoint: a program, a server over HTTP and a handler of the node.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::mcp::{Client, REVISIONS, messages};
use tests::redis::Redis;
use tests::sse::PATIENCE;
use tests::{Node, Setup, check, tools};

/// A server of the Python SDK.
const PYTHON: &str = "from mcp.server.fastmcp import FastMCP
m = FastMCP('py')
@m.tool()
def add(a: int, b: int) -> int:
    return a + b
@m.resource('py://answer')
def answer() -> str:
    return '42'
m.run()
";

const NEWEST: &str = "2025-11-25";

/// A tenant with the fixture as a program, over HTTP and in the node, and one more backend.
fn three(http: &str, more: &str) -> Setup {
    let program = tools::built("everything").display().to_string();
    Setup::config(format!(
        "[tenants.demo]\nauth = \"open\"\n\
         [tenants.demo.backends.prog]\nkind = \"stdio\"\ncommand = \"{program}\"\n\
         [tenants.demo.backends.remote]\nkind = \"http\"\nurl = \"{http}\"\n\
         allow_networks = [\"127.0.0.0/8\"]\nprefix = \"far\"\n\
         [tenants.demo.backends.own]\nkind = \"native\"\nname = \"everything\"\nprefix = \"\"\n{more}"
    ))
}

async fn names(client: &Client) -> Result<Vec<String>> {
    let listed = client.request("tools/list", json!({})).await?;
    let tools = listed["result"]["tools"].as_array().with_context(|| format!("{listed}"))?;
    Ok(tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect())
}

// holds: TOOL-01
#[tokio::test]
async fn clients_of_every_revision_use_several_servers_as_one() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let node = Node::start(&three(&upstream.demo(), ""))?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        ensure!(client.welcome["serverInfo"]["name"] == "demo", "{}", client.welcome);
        ensure!(client.welcome["capabilities"]["tools"]["listChanged"] == true);
        let names = names(&client).await?;
        for prefix in ["prog__", "far__", ""] {
            let wanted = format!("{prefix}rh_echo");
            ensure!(names.iter().filter(|name| **name == wanted).count() == 1, "{names:?}");
            let echo = client.tool(&wanted, json!({ "number": 7 })).await?;
            ensure!(echo["structuredContent"]["number"] == 7, "{revision}: {echo}");
            let count = json!({ "n": 3, "interval_ms": 5 });
            let call = client.call_with_progress(&format!("{prefix}rh_count"), count, json!(1));
            let messages = messages(&client.stream(call).await?.rest().await?);
            let steps = messages.iter().filter(|m| m["params"]["progress"].is_number()).count();
            ensure!(steps == 3, "{revision} {prefix}: {messages:?}");
        }
        let unknown = client.request("tools/call", json!({ "name": "none__rh_echo" })).await?;
        ensure!(unknown["error"].is_object() || unknown["result"]["isError"] == true, "{unknown}");
        check::status(&client.delete().await?, 204)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_backend_that_does_not_start_costs_only_its_own_tools() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let dead = "[tenants.demo.backends.dead]\nkind = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n\
                allow_networks = [\"127.0.0.0/8\"]\n";
    let node = Node::start(&three(&upstream.demo(), dead))?;
    let begin = Instant::now();
    let client = Client::open(node.demo(), NEWEST).await?;
    ensure!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    let names = names(&client).await?;
    ensure!(names.iter().any(|name| name == "far__rh_echo"), "{names:?}");
    ensure!(!names.iter().any(|name| name.starts_with("dead__")), "{names:?}");
    let refused = client.request("tools/call", json!({ "name": "dead__rh_echo" })).await?;
    let text = refused["error"]["message"].as_str().unwrap_or_default();
    ensure!(text.contains("`dead` is not available"), "{refused}");
    node.logs("a server of a catalog is not available").await?;
    Ok(())
}

#[tokio::test]
async fn a_server_that_ends_in_mid_call_fails_that_call_and_comes_back() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let node = Node::start(&three(&upstream.demo(), ""))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    names(&client).await?;
    let mut listening = client.listen().await?;
    let twin = client.twin();
    let slow = tokio::spawn(async move { twin.tool("rh_sleep", json!({ "ms": 500 })).await });
    let crashed = client.request("tools/call", json!({ "name": "prog__rh_crash" })).await?;
    let text = crashed["error"]["message"].as_str().unwrap_or_default();
    ensure!(text.contains("the server `prog` ended"), "{crashed}");
    slow.await?.context("the call at another server goes on")?;
    let mut changes = 0;
    while changes < 1 {
        let (_, message) = listening.message().await?.context("the stream ended")?;
        changes += usize::from(message["method"] == "notifications/tools/list_changed");
    }
    let until = Instant::now() + PATIENCE;
    while client.tool("prog__rh_echo", json!({})).await.is_err() {
        ensure!(Instant::now() < until, "not back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let all = names(&client).await?;
    ensure!(all.iter().any(|name| name == "prog__rh_echo"), "{all:?}");
    Ok(())
}

#[tokio::test]
async fn requests_of_each_server_reach_the_client_and_the_answers_that_server() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let node = Node::start(&three(&upstream.demo(), ""))?;
    let capabilities = json!({ "elicitation": {} });
    let client = Client::open_with(node.demo(), NEWEST, capabilities).await?;
    let mut streams = Vec::new();
    for prefix in ["prog__", "far__", ""] {
        let call = client.call(&format!("{prefix}rh_ask"), json!({ "times": 2 }));
        streams.push(client.stream(call).await?);
    }
    for _ in 0..2 {
        for stream in streams.iter_mut().rev() {
            let (_, question) = stream.message().await?.context("no question")?;
            ensure!(question["method"] == "elicitation/create", "{question}");
            let answer = json!({ "action": "accept", "content": {} });
            check::accepted(client.answer(&question["id"], answer).await?).await?;
        }
    }
    for stream in &mut streams {
        let (_, word) = stream.message().await?.context("no final response")?;
        ensure!(word.get("result").is_some(), "{word}");
    }
    Ok(())
}

#[tokio::test]
async fn a_cancellation_reaches_the_server_that_has_the_call() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let node = Node::start(&three(&upstream.demo(), ""))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let call = client.call_with_progress("prog__rh_sleep", json!({ "ms": 60_000 }), json!("t"));
    let id = call["id"].clone();
    let twin = client.twin();
    let sent = tokio::spawn(async move { twin.send(call).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    check::accepted(client.notify("notifications/cancelled", json!({ "requestId": id })).await?)
        .await?;
    let cancelled = async |tool: &str| -> Result<Value> {
        Ok(client.tool(tool, json!({})).await?["content"][0]["text"].clone())
    };
    let until = Instant::now() + PATIENCE;
    while cancelled("prog__rh_cancelled").await? != "1" {
        ensure!(Instant::now() < until, "not cancelled");
    }
    ensure!(cancelled("far__rh_cancelled").await? == "0", "cancelled at another server");
    sent.abort();
    Ok(())
}

/// `npm @modelcontextprotocol/server-everything` and a server of the Python SDK as programs, and the fixture in the node.
fn real_servers() -> Setup {
    let node = tools::node().display().to_string();
    let everything =
        tools::installed("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    let (everything, python) = (everything.display(), tools::python("py1").display().to_string());
    Setup::config(format!(
        "[tenants.demo]\nauth = \"open\"\n\
         [tenants.demo.backends.js]\nkind = \"stdio\"\ncommand = \"{node}\"\nargs = [\"{everything}\"]\n\
         [tenants.demo.backends.py]\nkind = \"stdio\"\ncommand = \"{python}\"\nargs = [\"-c\", {PYTHON:?}]\n\
         deny_resources = [\"secret:*\"]\n\
         [tenants.demo.backends.own]\nkind = \"native\"\nname = \"everything\"\n\
         deny_tools = [\"rh_crash\"]\n"
    ))
}

#[tokio::test]
async fn servers_of_public_sdks_are_one_with_their_tools_prompts_and_resources() -> Result<()> {
    let node = Node::start(&real_servers())?;
    let client = Client::open(node.demo(), NEWEST).await?;
    // A server that ended at its first start comes back after a second; the others are listed meanwhile.
    let (wanted, until) =
        (["js__echo", "py__add", "own__rh_echo"], Instant::now() + Duration::from_secs(20));
    let tools = loop {
        let tools = names(&client).await?;
        if wanted.iter().all(|wanted| tools.iter().any(|name| name == wanted)) {
            break tools;
        }
        ensure!(Instant::now() < until, "not all of {wanted:?}: {tools:?}\n{}", node.output());
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    ensure!(!tools.iter().any(|name| name == "own__rh_crash"), "{tools:?}");
    let denied = client.request("tools/call", json!({ "name": "own__rh_crash" })).await?;
    ensure!(denied["error"]["code"] == -32602, "{denied}");
    let sum = client.tool("py__add", json!({ "a": 40, "b": 2 })).await?;
    ensure!(sum["content"][0]["text"] == "42", "{sum}");
    let echo = client.tool("js__echo", json!({ "message": "round" })).await?;
    ensure!(
        echo["content"][0]["text"].as_str().is_some_and(|text| text.contains("round")),
        "{echo}"
    );
    let read = client.request("resources/read", json!({ "uri": "py://answer" })).await?;
    ensure!(read["result"]["contents"][0]["text"] == "42", "{read}");
    let listed = client.request("resources/list", json!({})).await?;
    let all = listed["result"]["resources"].as_array().context("no resources")?;
    let of_js =
        all.iter().find_map(|one| one["uri"].as_str().filter(|uri| uri.starts_with("demo://")));
    let read = client.request("resources/read", json!({ "uri": of_js })).await?;
    ensure!(read["result"]["contents"][0]["uri"] == json!(of_js), "{read}");
    let prompts = client.request("prompts/list", json!({})).await?;
    let prompts = prompts["result"]["prompts"].as_array().context("no prompts")?;
    ensure!(prompts.iter().any(|prompt| prompt["name"] == "js__simple-prompt"), "{prompts:?}");
    let prompt = client.request("prompts/get", json!({ "name": "js__simple-prompt" })).await?;
    ensure!(prompt["result"]["messages"].is_array(), "{prompt}");
    let reference = json!({ "type": "ref/prompt", "name": "js__completable-prompt" });
    let argument = json!({ "name": "department", "value": "E" });
    let params = json!({ "ref": reference, "argument": argument });
    let completed = client.request("completion/complete", params).await?;
    ensure!(completed["result"]["completion"]["values"].is_array(), "{completed}");
    Ok(())
}

#[tokio::test]
async fn a_catalog_moves_with_its_session_when_a_node_dies_and_when_one_drains() -> Result<()> {
    let redis = Redis::start()?;
    let program = tools::built("everything").display().to_string();
    let setup = Setup::config(format!(
        "[tenants.demo]\nauth = \"open\"\n\
         [tenants.demo.backends.prog]\nkind = \"stdio\"\ncommand = \"{program}\"\n\
         [tenants.demo.backends.own]\nkind = \"native\"\nname = \"everything\"\n"
    ));
    let setup = setup
        .with("store.url", redis.url())
        .with("cluster.listen", "127.0.0.1:0")
        .with("cluster.secret", "known to these three nodes, no secret");
    let mut nodes = (0..3).map(|_| Node::start(&setup)).collect::<Result<Vec<_>>>()?;
    let mut client = Client::open(nodes[0].demo(), NEWEST).await?;
    let before = names(&client).await?;
    client.url = nodes[1].demo();
    client.request("resources/subscribe", json!({ "uri": "test://watched-resource" })).await?;
    // A call that only reads runs again at the next owner; the other one ends with an error.
    let (reading, writing) = (client.twin(), client.twin());
    let slow = json!({ "ms": 1_500 });
    let reads = reading.ask(client.call("prog__rh_read_only_slow", slow.clone()));
    let writes = writing.ask(client.call("prog__rh_sleep", slow));
    let kill = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        nodes[0].kill()
    };
    let (read, written, killed) = tokio::join!(reads, writes, kill);
    killed?;
    let (read, written) = (read?, written?);
    ensure!(read["result"].is_object(), "a call that only reads: {read}");
    ensure!(written["error"].is_object(), "a call that may not run twice: {written}");
    let after = names(&client).await?;
    ensure!(before == after, "{before:?} {after:?}");
    for tool in ["prog__rh_echo", "own__rh_echo"] {
        let echo = client.tool(tool, json!({ "number": 3 })).await?;
        ensure!(echo["structuredContent"]["number"] == 3, "{echo}");
    }
    // The owner, whichever it is now, leaves in order.
    let survivor = nodes.remove(2);
    let drained = nodes.remove(1);
    client.url = survivor.demo();
    drained.stop(Duration::from_secs(30))?;
    let listed = names(&client).await?;
    ensure!(listed == before, "{listed:?}");
    let echo = client.tool("prog__rh_echo", json!({ "number": 4 })).await?;
    ensure!(echo["structuredContent"]["number"] == 4, "{echo}");
    Ok(())
}

#[tokio::test]
async fn rules_of_clients_are_about_the_names_with_prefixes() -> Result<()> {
    let program = tools::built("everything").display().to_string();
    let node = Node::start(&Setup::config(format!(
        "[tenants.demo]\nauth = \"open\"\n\
         [tenants.demo.permissions.all]\ntools = [\"prog__rh_*\"]\n\
         deny_tools = [\"prog__rh_sleep\"]\n\
         [tenants.demo.backends.prog]\nkind = \"stdio\"\ncommand = \"{program}\"\n\
         [tenants.demo.backends.own]\nkind = \"native\"\nname = \"everything\"\n"
    )))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let tools = names(&client).await?;
    ensure!(
        !tools.is_empty() && tools.iter().all(|name| name.starts_with("prog__rh_")),
        "{tools:?}"
    );
    ensure!(!tools.iter().any(|name| name == "prog__rh_sleep"), "{tools:?}");
    client.tool("prog__rh_echo", json!({})).await?;
    for denied in ["prog__rh_sleep", "own__rh_echo", "rh_echo"] {
        let answer = client.request("tools/call", json!({ "name": denied })).await?;
        ensure!(answer["error"].is_object(), "{denied}: {answer}");
    }
    Ok(())
}

/// What `roundhouse check --start` prints for these settings.
async fn checked(settings: &str) -> Result<String> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), settings)?;
    let mut command = tokio::process::Command::new(tools::built("roundhouse"));
    let output = command.args(["check", "--start"]).arg(file.path()).output().await?;
    Ok(String::from_utf8(output.stdout)?)
}

#[tokio::test]
async fn a_check_with_start_names_what_is_missing() -> Result<()> {
    let long = "x".repeat(24);
    let program = tools::built("everything").display().to_string();
    let text = checked(&format!(
        "[tenants.demo]\nauth = \"open\"\n\
         [tenants.demo.backends.long]\nkind = \"stdio\"\ncommand = \"{program}\"\nprefix = \"{long}\"\n\
         [tenants.demo.backends.dead]\nkind = \"stdio\"\ncommand = \"false\"\n"
    ))
    .await?;
    ensure!(text.contains("tenant demo: `dead`: not available: "), "{text}");
    ensure!(text.contains(&format!("{long}__rh_echo")), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_check_with_start_waits_for_servers_that_sessions_do_not_wait_for() -> Result<()> {
    let program = tools::built("everything").display().to_string();
    // A catalog answers after ten seconds without the servers that are still starting.
    let text = checked(&format!(
        "[tenants.demo]\nauth = \"open\"\n\
         [tenants.demo.backends.own]\nkind = \"native\"\nname = \"everything\"\n\
         [tenants.demo.backends.slow]\nkind = \"stdio\"\ncommand = \"sh\"\n\
         args = [\"-c\", \"sleep 11; exec {program}\"]\n\
         [tenants.demo.backends.soon]\nkind = \"stdio\"\ncommand = \"{program}\"\nstart_secs = 5\n\
         [tenants.demo.backends.stuck]\nkind = \"stdio\"\ncommand = \"sleep\"\nargs = [\"99\"]\n\
         start_secs = 2\n"
    ))
    .await?;
    for tool in ["own__rh_echo", "slow__rh_echo", "soon__rh_echo"] {
        ensure!(text.contains(tool), "{tool}: {text}");
    }
    ensure!(text.contains("tenant demo: `stuck`: not available: "), "{text}");
    Ok(())
}

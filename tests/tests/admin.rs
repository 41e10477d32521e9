//! Operators: credentials with roles, lists of nodes, tenants and sessions, and the end of a session.

use std::io::Write as _;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tests::mcp::Client;
use tests::recorded::pinged;
use tests::sse::Events;
use tests::{Node, Setup, tools};
use tokio::time::sleep;

#[path = "admin/cluster.rs"]
mod cluster;

const NEWEST: &str = "2025-11-25";

/// The maximum time of each step here.
const PATIENCE: Duration = Duration::from_secs(30);

const TOKEN: &str = "a-token-for-operators";

/// A tenant `demo`, whose server runs in the node.
const DEMO: &str = "\
[tenants.demo]
auth = 'open'

[tenants.demo.backends.main]
kind = 'native'
name = 'everything'
";

/// A file that holds a token, with mode 600.
fn token_file(token: &str) -> Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    file.write_all(token.as_bytes())?;
    Ok(file)
}

/// Runs a command of the program.
async fn run(arguments: &[&str], token: Option<&str>) -> Result<Output> {
    let mut command = Command::new(tools::built("roundhouse"));
    command.args(arguments).env_remove("ROUNDHOUSE_ADMIN_TOKEN");
    if let Some(token) = token {
        command.env("ROUNDHOUSE_ADMIN_TOKEN", token);
    }
    Ok(tokio::task::spawn_blocking(move || command.output()).await??)
}

/// Asks a node with a command; returns what it prints, or the error.
async fn ask(
    node: &Node,
    arguments: &[&str],
    token: Option<&str>,
) -> Result<Result<String, String>> {
    let arguments = [arguments, &["--admin", &node.admin]].concat();
    let output = run(&arguments, token).await?;
    let (told, printed) = (String::from_utf8(output.stderr)?, String::from_utf8(output.stdout)?);
    let is_told = token.is_some_and(|token| !token.is_empty() && told.contains(token));
    ensure!(!is_told, "a token is printed: {told}");
    match output.status.code() {
        Some(0) => Ok(Ok(printed)),
        Some(1) => Ok(Err(told)),
        code => bail!("exit code {code:?}: {told}"),
    }
}

/// The answer of a command as JSON.
async fn json_of(node: &Node, arguments: &[&str]) -> Result<Value> {
    let printed = ask(node, &[arguments, &["--json"]].concat(), Some(TOKEN)).await?;
    let printed = printed.map_err(anyhow::Error::msg)?;
    serde_json::from_str(&printed).with_context(|| printed)
}

fn list<'a>(answer: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    answer[name].as_array().with_context(|| format!("no {name}: {answer}"))
}

/// The keys of an object, sorted: their order is no promise.
fn keys(value: &Value) -> Vec<&str> {
    let keys = value.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    let mut keys: Vec<_> = keys.collect();
    keys.sort_unstable();
    keys
}

/// Sends a request to the admin port without the command; returns the status and the body.
async fn request(
    node: &Node,
    method: Method,
    path: &str,
    header: (&str, &str),
) -> Result<(u16, String)> {
    let request = reqwest::Client::new().request(method, format!("{}{path}", node.admin));
    let response = request.header(header.0, header.1).send().await?;
    Ok((response.status().as_u16(), response.text().await?))
}

/// Makes a credential in the settings of a node; returns its token.
async fn admin_key(node: &Node, arguments: &[&str]) -> Result<String> {
    let file = node.config_file().display().to_string();
    let arguments = [&["admin-key"], arguments, &["--into", &file]].concat();
    let output = run(&arguments, None).await?;
    let told = String::from_utf8(output.stderr)?;
    ensure!(output.status.success(), "{told}");
    let token = String::from_utf8(output.stdout)?.trim().to_owned();
    ensure!(token.starts_with("rha_") && token.len() == 68 && !told.contains(&token), "{told}");
    ensure!(!std::fs::read_to_string(node.config_file())?.contains(&token), "the token is stored");
    Ok(token)
}

/// Waits until the node answers a list of its nodes as `is_due` says.
async fn until(
    node: &Node,
    token: &str,
    is_due: impl Fn(&Result<String, String>) -> bool,
) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = ask(node, &["nodes"], Some(token)).await?;
        if is_due(&answer) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{answer:?}\n{}", node.output());
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_credential_may_do_what_its_role_allows_until_it_ends_or_is_removed() -> Result<()> {
    let node = Node::start(&Setup::config(DEMO))?;
    // Without a credential nothing is allowed on a port.
    let refused = ask(&node, &["nodes"], None).await?.unwrap_err();
    ensure!(refused.contains("403") && refused.contains("roundhouse admin-key"), "{refused}");

    let read = admin_key(&node, &["board", "--role", "read", "--days", "30"]).await?;
    let operate = admin_key(&node, &["ops", "--role", "operate"]).await?;
    let second = admin_key(&node, &["ops-2", "--role", "operate"]).await?;
    for token in [&read, &operate, &second] {
        until(&node, token, Result::is_ok).await?;
    }
    for list in ["nodes", "tenants", "sessions"] {
        ensure!(ask(&node, &[list], Some(&read)).await?.is_ok(), "{list}");
    }
    for action in
        [&["drain"][..], &["undrain"], &["end-session", "0123456789abcdef", "--tenant", "demo"]]
    {
        let refused = ask(&node, action, Some(&read)).await?.unwrap_err();
        ensure!(refused.contains("403") && refused.contains("`board`"), "{refused}");
        ensure!(refused.contains("`operate`"), "{refused}");
    }
    for wrong in [None, Some("rha_0"), Some(&read[..67]), Some("")] {
        let refused = ask(&node, &["nodes"], wrong).await?.unwrap_err();
        ensure!(
            refused.contains("401") && refused.contains("--token-file"),
            "{wrong:?}: {refused}"
        );
    }
    ensure!(ask(&node, &["drain"], Some(&operate)).await?.is_ok());
    ensure!(ask(&node, &["undrain"], Some(&second)).await?.is_ok());

    // One credential is removed, and another one has ended.
    let text = std::fs::read_to_string(node.config_file())?;
    let at = text.find("[admin.credentials.ops]").context("no such credential")?;
    let end = text.find("[admin.credentials.ops-2]").context("no such credential")?;
    let without = format!("{}{}expires = \"2020-01-01T00:00:00Z\"\n", &text[..at], &text[end..]);
    std::fs::write(node.config_file(), without)?;
    until(&node, &operate, Result::is_err).await?;
    let ended = ask(&node, &["nodes"], Some(&second)).await?.unwrap_err();
    ensure!(ended.contains("401") && ended.contains("`ops-2` has ended"), "{ended}");
    ensure!(ask(&node, &["nodes"], Some(&read)).await?.is_ok());

    let output = node.output();
    for line in
        ["credential=\"ops\" action=\"drain\"", "credential=\"board\" action=\"end session\""]
    {
        ensure!(output.contains(line), "{line}:\n{output}");
    }
    ensure!(![&read, &operate, &second].iter().any(|token| output.contains(*token)), "{output}");
    Ok(())
}

#[tokio::test]
async fn a_token_whose_file_alone_changes_counts_and_the_former_one_does_not() -> Result<()> {
    let file = token_file(TOKEN)?;
    let node = Node::start(&Setup::config(DEMO).with("admin.token_file", file.path().display()))?;
    until(&node, TOKEN, Result::is_ok).await?;
    std::fs::write(file.path(), "another-token-for-operators")?;
    until(&node, "another-token-for-operators", Result::is_ok).await?;
    let refused = ask(&node, &["nodes"], Some(TOKEN)).await?.unwrap_err();
    ensure!(refused.contains("401"), "{refused}");
    // A file without a token changes nothing.
    std::fs::write(file.path(), "")?;
    node.logs("the settings were not applied").await?;
    ensure!(ask(&node, &["nodes"], Some("another-token-for-operators")).await?.is_ok());
    ensure!(!node.output().contains("token-for-operators"), "a token is in the log");
    Ok(())
}

#[tokio::test]
async fn metrics_need_a_credential_if_the_settings_say_so_and_probes_never_do() -> Result<()> {
    let token = token_file(TOKEN)?;
    let setup = Setup::config(DEMO)
        .with("admin.protect_metrics", true)
        .with("admin.token_file", token.path().display());
    let node = Node::start(&setup)?;
    let bearer = format!("Bearer {TOKEN}");
    let metrics =
        async |header| anyhow::Ok(request(&node, Method::GET, "/metrics", header).await?.0);
    ensure!(metrics(("accept", "*/*")).await? == 401);
    ensure!(metrics(("authorization", "Bearer x")).await? == 401);
    ensure!(metrics(("authorization", &bearer)).await? == 200);
    for probe in ["/healthz", "/readyz"] {
        ensure!(request(&node, Method::GET, probe, ("accept", "*/*")).await?.0 == 200, "{probe}");
    }
    Ok(())
}

#[tokio::test]
async fn a_page_a_stranger_and_a_hostile_id_get_nothing() -> Result<()> {
    let token = token_file(TOKEN)?;
    let node = Node::start(&Setup::config(DEMO).with("admin.token_file", token.path().display()))?;
    let client = Client::open(&node.demo(), NEWEST).await?;
    let session = client.session.clone().context("no session")?;
    let bearer = format!("Bearer {TOKEN}");
    let all = [
        (Method::GET, "/v1/nodes".to_owned()),
        (Method::GET, "/v1/tenants".to_owned()),
        (Method::GET, "/v1/sessions".to_owned()),
        (Method::DELETE, format!("/v1/sessions/{session}")),
        (Method::POST, "/drain".to_owned()),
    ];
    for (method, path) in &all {
        let page = reqwest::Client::new().request(method.clone(), format!("{}{path}", node.admin));
        let page = page.bearer_auth(TOKEN).header("origin", "http://localhost").send().await?;
        ensure!(page.status() == 403, "{path}");
        let host = reqwest::Client::new().request(method.clone(), format!("{}{path}", node.admin));
        let host = host.bearer_auth(TOKEN).header("host", "evil.example").send().await?;
        ensure!(host.status() == 403, "{path}");
        let stranger = request(&node, method.clone(), path, ("accept", "*/*")).await?;
        ensure!(stranger.0 == 401 && !stranger.1.contains("demo"), "{path}: {stranger:?}");
        let twice = reqwest::Client::new().request(method.clone(), format!("{}{path}", node.admin));
        let twice = twice.bearer_auth(TOKEN).bearer_auth("x").send().await?;
        ensure!(twice.status() == 401, "{path}");
    }
    let long = "x".repeat(129);
    for (id, status) in [
        ("%00", 400),
        ("..%2F..%2Fdrain", 404),
        ("a%0d%0aX:%20y", 400),
        ("%ff%fe", 400),
        (&long, 400),
        ("0123456789abcdef", 400),
        ("0123456789abcdef?tenant=demo", 404),
        ("0123456789abcdef?tenant=demo&tenant=other", 400),
        ("unknown", 404),
        (&format!("{session}?tenant=other"), 404),
    ] {
        let path = format!("/v1/sessions/{id}");
        let header = ("authorization", &*bearer);
        let (got, body) = request(&node, Method::DELETE, &path, header).await?;
        ensure!(got == status, "{id}: {got} {body}");
        let error = serde_json::from_str::<Value>(&body)?["error"].is_string();
        ensure!(error && !body.contains(&session), "{id}: {body}");
    }
    client.is_well().await?;
    ensure!(!node.output().contains(&session), "an id is in the log");
    Ok(())
}

#[tokio::test]
async fn each_command_prints_a_table_or_json_of_one_node() -> Result<()> {
    let token = token_file(TOKEN)?;
    let node = Node::start(&Setup::config(DEMO).with("admin.token_file", token.path().display()))?;
    let client = Client::open(&node.demo(), NEWEST).await?;
    let session = client.session.clone().context("no session")?;

    let nodes = json_of(&node, &["nodes"]).await?;
    let [own] = &**list(&nodes, "nodes")? else { bail!("{nodes}") };
    ensure!(own["self"] == true && own["ready"] == true && own["sessions"] == 1, "{own}");
    ensure!(own["version"] == env!("CARGO_PKG_VERSION"), "{own}");
    let expected = [
        "address",
        "draining",
        "incarnation",
        "linked",
        "name",
        "ready",
        "reasons",
        "self",
        "sessions",
        "version",
    ];
    ensure!(keys(own) == expected, "{own}");

    let tenants = json_of(&node, &["tenants"]).await?;
    let [tenant] = &**list(&tenants, "tenants")? else { bail!("{tenants}") };
    ensure!(tenant["name"] == "demo" && tenant["sessions"] == 1, "{tenant}");
    ensure!(tenant["auth"] == json!(["open"]) && tenant["limits"]["sessions_max"].is_u64());
    let expected = [
        "auth",
        "children",
        "hosts",
        "keys",
        "leaving",
        "limits",
        "name",
        "nodes",
        "session_bytes",
        "sessions",
        "stored_bytes",
    ];
    ensure!(keys(tenant) == expected, "{tenant}");
    let [of_node] = &**list(tenant, "nodes")? else { bail!("{tenant}") };
    let expected = ["children", "limits", "node", "session_bytes", "sessions", "stored_bytes"];
    ensure!(keys(of_node) == expected && of_node["sessions"] == 1, "{of_node}");

    let sessions = json_of(&node, &["sessions", "--tenant", "demo"]).await?;
    let [listed] = &**list(&sessions, "sessions")? else { bail!("{sessions}") };
    let expected = [
        "at_node_secs",
        "client",
        "id",
        "idle_secs",
        "node",
        "principal",
        "requests",
        "revision",
        "streams",
        "tenant",
    ];
    ensure!(keys(listed) == expected && listed["revision"] == NEWEST, "{listed}");
    ensure!(listed["principal"].is_null() && listed["requests"] == 0, "{listed}");
    ensure!(sessions["next"].is_null() && list(&sessions, "unasked")?.is_empty(), "{sessions}");
    let id = listed["id"].as_str().context("no id")?;
    ensure!(!session.contains(id) && !sessions.to_string().contains(&session), "{sessions}");
    let others = json_of(&node, &["sessions", "--tenant", "other"]).await?;
    ensure!(list(&others, "sessions")?.is_empty(), "{others}");

    for (command, word) in [("nodes", "ready"), ("tenants", "demo"), ("sessions", id)] {
        let table = ask(&node, &[command], Some(TOKEN)).await?.map_err(anyhow::Error::msg)?;
        ensure!(table.lines().count() == 2 && table.contains(word), "{table}");
    }
    // The token may be in a file, and the address what the node prints.
    let file = token.path().display().to_string();
    let printed = format!("{}/metrics", node.admin);
    let arguments = ["nodes", "--token-file", &file, "--admin", &printed];
    ensure!(run(&arguments, None).await?.status.success());

    let refused = ask(&node, &["end-session", id, "--tenant", "other"], Some(TOKEN)).await?;
    ensure!(refused.unwrap_err().contains("404"));
    let ended = json_of(&node, &["end-session", &id[..8], "--tenant", "demo"]).await?;
    ensure!(ended["ended"]["id"] == id && ended["ended"]["tenant"] == "demo", "{ended}");
    ensure!(pinged(&client, &node).await? == 404);
    let again = ask(&node, &["end-session", &session], Some(TOKEN)).await?;
    ensure!(again.unwrap_err().contains("404"));

    let _other = Client::open(&node.demo(), NEWEST).await?;
    let drained = ask(&node, &["drain", "--wait", "--secs", "1"], Some(TOKEN)).await?;
    ensure!(drained.clone().is_ok_and(|told| told.contains("drained")), "{drained:?}");
    let nodes = json_of(&node, &["nodes"]).await?;
    ensure!(nodes["nodes"][0]["draining"] == true && nodes["nodes"][0]["ready"] == false);
    let undrained = ask(&node, &["undrain", "--json"], Some(TOKEN)).await?;
    ensure!(undrained == Ok("{\n  \"outcome\": \"drain taken back\"\n}\n".into()), "{undrained:?}");
    let unreachable = run(&["nodes", "--admin", "127.0.0.1:1"], None).await?;
    let told = String::from_utf8(unreachable.stderr)?;
    ensure!(unreachable.status.code() == Some(1) && told.contains("`--admin ADDRESS`"), "{told}");
    Ok(())
}

#[tokio::test]
async fn over_a_unix_socket_the_user_of_the_node_needs_no_token() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (config, socket) =
        (folder.path().join("roundhouse.toml"), folder.path().join("admin.sock"));
    std::fs::write(&config, DEMO)?;
    let address = format!("unix:{}", socket.display());
    let absent = run(&["nodes", "--admin", &address], None).await?;
    ensure!(String::from_utf8(absent.stderr)?.contains("`--admin unix:/PATH`"));
    let mut node = Command::new(tools::built("roundhouse"));
    node.args(["serve", "--listen", "127.0.0.1:0", "--admin", &address, "--config"]).arg(&config);
    // The token of a shell in which a node is started is no setting of the node.
    node.env("ROUNDHOUSE_ADMIN_TOKEN", TOKEN);
    let mut node = node.env("RUST_LOG", "error").spawn()?;
    let until = Instant::now() + PATIENCE;
    let printed = loop {
        let output = run(&["tenants", "--admin", &address], None).await?;
        if output.status.success() || Instant::now() > until {
            break String::from_utf8(output.stdout)?;
        }
        sleep(Duration::from_millis(50)).await;
    };
    let environment = std::fs::read(format!("/proc/{}/environ", node.id()))?;
    let drained = run(&["drain", "--admin", &address], None).await?.status.success();
    node.kill()?;
    node.wait()?;
    ensure!(printed.contains("demo") && drained, "{printed}");
    let environment = String::from_utf8_lossy(&environment);
    ensure!(!environment.contains(TOKEN), "the token stays in the environment of the node");
    Ok(())
}

#[tokio::test]
async fn streams_and_principals_are_listed_and_a_connection_of_2024_ends_with_its_session()
-> Result<()> {
    let token = token_file(TOKEN)?;
    let node = Node::start(
        &Setup::config(DEMO.replace("auth = 'open'", "auth = 'keys'"))
            .with("admin.token_file", token.path().display()),
    )?;
    let file = node.config_file().display().to_string();
    let mut keys = Vec::new();
    // No hexadecimal id has this name by chance.
    for name in ["zoe", "bob"] {
        let output = run(&["key", "demo", name, "--into", &file], None).await?;
        keys.push(String::from_utf8(output.stdout)?.trim().to_owned());
    }
    let until = Instant::now() + PATIENCE;
    let opened = loop {
        match Client::new(node.demo(), NEWEST).with_key(&keys[1]).opened(json!({})).await {
            Ok(client) => break client,
            Err(error) => ensure!(Instant::now() < until, "{error}"),
        }
        sleep(Duration::from_millis(100)).await;
    };
    let of_zoe = Client::new(node.demo(), NEWEST).with_key(&keys[0]).opened(json!({})).await?;
    let _stream = of_zoe.listen().await?;
    let old = Client::new(format!("{}/demo/sse", node.base), "2024-11-05").with_key(&keys[0]);
    let mut events = Events::of(old.get(None).await?)?;
    let endpoint = events.next().await?.context("no endpoint")?.data.context("no data")?;

    let tenants = json_of(&node, &["tenants"]).await?;
    ensure!(tenants["tenants"][0]["keys"] == 2 && tenants["tenants"][0]["auth"] == json!(["keys"]));
    let sessions = json_of(&node, &["sessions"]).await?;
    ensure!(list(&sessions, "sessions")?.len() == 3, "{sessions}");
    let of = |has: &dyn Fn(&Value) -> bool| {
        let found = list(&sessions, "sessions")?.iter().find(|session| has(session));
        found.with_context(|| format!("no such session: {sessions}"))
    };
    let duplex = of(&|session| session["revision"].is_null())?;
    let streaming = of(&|session| session["revision"] == NEWEST && session["streams"] == 1)?;
    let idle = of(&|session| session["streams"] == 0)?;
    ensure!(duplex["principal"] == streaming["principal"], "{sessions}");
    ensure!(idle["principal"].is_string() && idle["principal"] != streaming["principal"]);
    ensure!(!sessions.to_string().contains("zoe"), "{sessions}");

    let id = duplex["id"].as_str().context("no id")?;
    json_of(&node, &["end-session", id, "--tenant", "demo"]).await?;
    events.rest().await?;
    let mut poster = Client::new(format!("{}{endpoint}", node.base), "2024-11-05");
    poster.key = Some(keys[0].clone());
    let refused = poster.send(poster.message("ping", json!({}))).await?;
    ensure!(refused.status() == 404, "{}", refused.status());
    opened.is_well().await?;
    of_zoe.is_well().await
}

/// A server whose calls do not end. It writes what it sees to a file.
fn endless(file: &str) -> String {
    let server = format!(
        "import sys, json\n\
         def note(what):\n    open('{file}', 'a').write(what + '\\n')\n\
         for line in sys.stdin:\n    \
             message = json.loads(line)\n    \
             note(message.get('method', ''))\n    \
             if message.get('method') != 'initialize': continue\n    \
             info = {{'name': 'endless', 'version': '1'}}\n    \
             result = {{'protocolVersion': '2025-11-25', 'capabilities': {{'tools': {{}}}}, 'serverInfo': info}}\n    \
             print(json.dumps({{'jsonrpc': '2.0', 'id': message['id'], 'result': result}}), flush=True)\n\
         note('the end of input')\n"
    );
    format!(
        "[tenants.demo]\nauth = 'open'\n[tenants.demo.backends.main]\nkind = 'stdio'\n\
         sandbox = 'none'\ncommand = 'python3'\nargs = ['-c', {}]\n",
        json!(server)
    )
}

#[tokio::test]
async fn a_running_call_of_an_ended_session_ends_at_the_server_and_at_the_client() -> Result<()> {
    let token = token_file(TOKEN)?;
    let seen = NamedTempFile::new()?;
    let config = endless(&seen.path().display().to_string());
    let node =
        Node::start(&Setup::config(config).with("admin.token_file", token.path().display()))?;
    let client = Client::open(&node.demo(), NEWEST).await?;
    let call = client.call("any", json!({}));
    let calling = tokio::spawn({
        let client = client.twin();
        async move { client.ask(call).await }
    });
    let until = Instant::now() + PATIENCE;
    let sees = |what: &str| anyhow::Ok(std::fs::read_to_string(seen.path())?.contains(what));
    while !sees("tools/call")? {
        ensure!(Instant::now() < until, "the call does not begin:\n{}", node.output());
        sleep(Duration::from_millis(20)).await;
    }
    let sessions = json_of(&node, &["sessions"]).await?;
    ensure!(sessions["sessions"][0]["requests"] == 1, "{sessions}");
    let id = sessions["sessions"][0]["id"].as_str().context("no id")?;
    json_of(&node, &["end-session", id, "--tenant", "demo"]).await?;
    ensure!(pinged(&client, &node).await? == 404);
    let answer = calling.await??;
    ensure!(answer["error"]["message"] == "the session has ended", "{answer}");
    while !sees("the end of input")? {
        ensure!(Instant::now() < until, "the server goes on:\n{}", node.output());
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

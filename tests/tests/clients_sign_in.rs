//! Programs that people use sign in at a real authorization server, through a browser: `mcp-remote` and
//! the MCP Inspector. And clients whose id is the URL of a document about them.

use std::os::unix::fs::symlink;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::issuers::Issuer;
use tests::nodes::port;
use tests::program::Program;
use tests::{Node, Setup, tools};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

/// The longest that a client may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a tool of the server answers.
const TEXT: &str = "This is a simple text response for testing.";

/// A node whose tenant `demo` takes tokens of this issuer.
fn protected(issuer: &Issuer) -> Result<Node> {
    let listen = format!("127.0.0.1:{}", port()?);
    let text = format!(
        "front.public_url = 'http://{listen}'
         [tenants.demo]
         auth = 'oauth'
         [tenants.demo.oauth]
         issuer = '{}'
         scopes = ['mcp']
         [tenants.demo.backends.main]
         kind = 'native'
         name = 'everything'
        ",
        issuer.url
    );
    Node::start(&Setup::config(text).listen(&listen))
}

/// A user: a home, and a browser that signs in and agrees at once.
struct User(tempfile::TempDir);

impl User {
    fn new() -> Result<Self> {
        let home = tempfile::tempdir()?;
        std::fs::create_dir(home.path().join("bin"))?;
        symlink(Self::browser(), home.path().join("bin/xdg-open"))?;
        Ok(Self(home))
    }

    fn browser() -> std::path::PathBuf {
        tools::root().join("tests/clients/open_page.mjs")
    }

    /// A program in Node that this user runs.
    fn runs(&self, script: std::path::PathBuf) -> Command {
        let home = self.0.path();
        let mut command = Command::new(tools::node());
        command.arg(script).kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("HOME", home).env("BROWSER", Self::browser());
        command.env("PATH", format!("{}:{}", home.join("bin").display(), tools::path()));
        command.env("STORY_PAGES", home.join("pages"));
        command
    }

    /// The parameters of the only page that a program has opened.
    fn page(&self) -> Result<reqwest::Url> {
        let pages = std::fs::read_to_string(self.0.path().join("pages"))?;
        ensure!(pages.lines().count() == 1, "{pages}");
        Ok(pages.trim().parse()?)
    }
}

/// The value of a parameter in the URL of a page.
fn parameter(page: &reqwest::Url, name: &str) -> Option<String> {
    page.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// Calls a tool with the Inspector's command line, which signs its user in.
async fn inspect(user: &User, node: &Node, callback: &str, more: &[&str]) -> Result<()> {
    let inspector = tools::installed("node_modules/@modelcontextprotocol/inspector");
    let mut command = user.runs(inspector.join("clients/launcher/build/index.js"));
    command.args(["--cli", &node.demo(), "--transport", "http", "--callback-url", callback]);
    command.args(["--method", "tools/call", "--tool-name", "test_simple_text"]).args(more);
    // Otherwise it needs a terminal to sign in.
    command.env("MCP_AUTO_OPEN_ENABLED", "true").env("MCP_INSPECTOR_SECRET_STORE", "memory");
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output();
    let output = timeout(PATIENCE, output).await.context("the Inspector does not end")??;
    let told = String::from_utf8_lossy(&output.stderr);
    let answer: Value = serde_json::from_slice(&output.stdout).with_context(|| told.to_string())?;
    ensure!(answer["content"][0]["text"] == TEXT, "{answer}");
    let page = user.page()?;
    ensure!(parameter(&page, "resource") == Some(node.demo()), "{page}");
    ensure!(parameter(&page, "scope").is_some_and(|scope| scope.contains("mcp")), "{page}");
    Ok(())
}

#[tokio::test]
async fn the_inspector_signs_its_user_in() -> Result<()> {
    let issuer = Issuer::provider("mcp", 600).await?;
    let (node, user) = (protected(&issuer)?, User::new()?);
    let callback = format!("http://127.0.0.1:{}/oauth/callback", port()?);
    inspect(&user, &node, &callback, &[]).await
}

/// The same in the Inspector's page, in Chromium, which has hundreds of megabytes: only `tests/setup --full`
/// installs it, and `tests/full` runs this.
#[tokio::test]
async fn long_the_page_of_the_inspector_signs_its_user_in() -> Result<()> {
    let issuer = Issuer::provider("mcp", 600).await?;
    let (node, user) = (protected(&issuer)?, User::new()?);
    let inspector = tools::installed("node_modules/@modelcontextprotocol/inspector");
    let mut command = user.runs(inspector.join("clients/launcher/build/index.js"));
    command.args(["--web", "--transport", "http", "--server-url", &node.demo()]);
    command.env("MCP_AUTO_OPEN_ENABLED", "false").env("MCP_INSPECTOR_SECRET_STORE", "memory");
    for name in ["CLIENT_PORT", "MCP_SANDBOX_PORT", "MCP_APP_ORIGIN_PORT"] {
        command.env(name, port()?.to_string());
    }
    let mut inspector = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut lines = BufReader::new(inspector.stdout.take().context("no stdout")?).lines();
    let url = loop {
        let line = timeout(PATIENCE, lines.next_line()).await.context("no page")??;
        let line = line.context("the Inspector ended")?;
        if let Some(at) = line.find("http://").filter(|_| line.contains("API_TOKEN=")) {
            break line[at..].trim().to_owned();
        }
    };
    let mut browser = user.runs(tools::root().join("tests/clients/browser/inspector.mjs"));
    browser.args([&url, "test_simple_text"]).stdin(Stdio::null());
    let output =
        timeout(PATIENCE, browser.output()).await.context("the page does not connect")??;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The id of each client is the URL of a document that the authorization server fetches over TLS. That
/// server registers no client.
#[tokio::test]
async fn clients_sign_in_whose_id_is_the_url_of_a_document() -> Result<()> {
    let inspectors = format!("http://127.0.0.1:{}/oauth/callback", port()?);
    let callbacks = ["http://127.0.0.1:1/callback", &inspectors];
    let issuer = Issuer::provider_of_a_document("mcp", &callbacks).await?;
    let node = protected(&issuer)?;
    for program in [Program::TypeScript1, Program::TypeScript2, Program::Python2] {
        let seen = program.play_signed_in_as(&node.demo(), "tour", &issuer.client).await?;
        let redirected = seen.one("redirected")?;
        ensure!(redirected["client"] == *issuer.client, "{redirected}");
        ensure!(redirected["resource"] == node.demo(), "{redirected}");
        let result = &seen.one("result")?["text"];
        ensure!(result == TEXT, "{program:?}: {result}");
    }
    let user = User::new()?;
    inspect(&user, &node, &inspectors, &["--client-metadata-url", &issuer.client]).await?;
    let page = user.page()?;
    ensure!(parameter(&page, "client_id").as_ref() == Some(&issuer.client), "{page}");
    Ok(())
}

/// `mcp-remote` is a server on standard streams, which signs its user in when it is first used.
#[tokio::test]
async fn mcp_remote_signs_its_user_in_and_keeps_the_token() -> Result<()> {
    let issuer = Issuer::provider("mcp", 600).await?;
    let (node, user) = (protected(&issuer)?, User::new()?);
    // Later it has the token of the first time, and opens no browser.
    for _ in 0..2 {
        let mut command = user.runs(tools::installed("node_modules/mcp-remote/dist/proxy.js"));
        command.args([&node.demo(), "--host", "127.0.0.1", "--transport", "http-only"]);
        let mut process = command.stderr(Stdio::null()).spawn()?;
        let mut stdin = process.stdin.take().context("no stdin")?;
        let mut lines = BufReader::new(process.stdout.take().context("no stdout")?).lines();
        let mut ask = async |message: Value| -> Result<Value> {
            stdin.write_all(format!("{message}\n").as_bytes()).await?;
            loop {
                let Some(id) = message.get("id") else { return Ok(Value::Null) };
                let line = timeout(PATIENCE, lines.next_line()).await.context("no answer")??;
                let line: Value = serde_json::from_str(&line.context("mcp-remote ended")?)?;
                if line["id"] == *id {
                    return Ok(line);
                }
            }
        };
        let client = json!({ "name": "user", "version": "1" });
        let params =
            json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
        let opened = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
        let answer = ask(opened).await?;
        ensure!(answer["result"]["protocolVersion"] == "2025-11-25", "{answer}");
        ask(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await?;
        let params = json!({ "name": "test_simple_text", "arguments": {} });
        let call = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params });
        let answer = ask(call).await?;
        ensure!(answer["result"]["content"][0]["text"] == TEXT, "{answer}");
        let page = user.page()?;
        ensure!(parameter(&page, "resource") == Some(node.demo()), "{page}");
        process.kill().await?;
    }
    Ok(())
}

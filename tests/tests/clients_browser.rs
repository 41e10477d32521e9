//! A page in Chromium that uses a tenant of another origin: over Streamable HTTP, with a resumed stream,
//! and over HTTP+SSE. `tests/setup --full` installs Chromium.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::program::Seen;
use tests::{Node, Setup, tools};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

/// The maximum time until the page is done.
const PATIENCE: Duration = Duration::from_secs(90);

#[tokio::test]
async fn long_a_page_of_an_allowed_origin_uses_a_tenant() -> Result<()> {
    let site = Site::start().await?;
    let origin = site.origin("allowed.example");
    let node = Node::start(&settings(&origin))?;
    let seen = site.visit(&origin, &node.base).await?;
    let tools = seen.one("tools")?["names"].as_array().context("no names")?;
    ensure!(tools.contains(&json!("rh_count")), "{tools:?}");
    let progress = seen.one("progress")?;
    let all: Vec<Value> = (1..=10).map(|step| json!(step)).collect();
    ensure!(progress["steps"].as_array() == Some(&all), "{progress}");
    ensure!(progress["text"] == "counted to 10", "{progress}");
    ensure!(seen.one("ended")?["status"] == 204, "{seen:?}");
    ensure!(seen.one("welcome")?["revision"] == "2024-11-05", "{seen:?}");
    Ok(())
}

#[tokio::test]
async fn long_a_page_of_another_origin_is_refused() -> Result<()> {
    let site = Site::start().await?;
    let node = Node::start(&settings(&site.origin("allowed.example")))?;
    let seen = site.visit(&site.origin("other.example"), &node.base).await?;
    let failure = seen.one("failed")?["message"].as_str().context("no message")?;
    ensure!(failure.contains("Failed to fetch"), "{failure}");
    ensure!(node.metric("roundhouse_sessions").await? == Some(0.0));
    Ok(())
}

fn settings(origin: &str) -> Setup {
    Setup::config(format!(
        "[tenants.demo]
         auth = 'open'
         allowed_origins = ['{origin}']
         [tenants.demo.backends.main]
         kind = 'native'
         name = 'everything'"
    ))
}

/// The server of the page. It keeps what the page posts.
struct Site {
    port: u16,
    seen: Arc<Mutex<Vec<Value>>>,
}

impl Site {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let seen = Arc::<Mutex<Vec<Value>>>::default();
        let kept = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let kept = Arc::clone(&kept);
                tokio::spawn(async move { serve(connection, &kept).await });
            }
        });
        Ok(Self { port, seen })
    }

    /// The origin of the page under this name, which only the browser of the test resolves.
    fn origin(&self, host: &str) -> String {
        format!("http://{host}:{}", self.port)
    }

    /// Opens the page in a browser, until the page is done.
    async fn visit(&self, origin: &str, node: &str) -> Result<Seen> {
        let profile = tempfile::tempdir()?;
        let mut browser = Command::new("chromium");
        browser.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
        browser.args(["--disable-background-networking", "--disable-component-update"]);
        // No name leads anywhere but to this machine.
        browser.arg("--host-resolver-rules=MAP * 127.0.0.1");
        browser.arg(format!("--user-data-dir={}", profile.path().display()));
        browser.arg(format!("{origin}/?node={node}")).env("HOME", profile.path());
        browser.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let remedy = "chromium does not start: run tests/setup --full";
        let mut browser = browser.kill_on_drop(true).spawn().context(remedy)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let seen = Seen(self.seen.lock().expect("no thread panics with it").clone());
            if !seen.all("end").is_empty() {
                browser.kill().await?;
                return Ok(seen);
            }
            ensure!(Instant::now() < until, "the page does not end: {seen:?}");
            ensure!(browser.try_wait()?.is_none(), "the browser ended: {seen:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Serves one connection with one request.
async fn serve(connection: TcpStream, seen: &Mutex<Vec<Value>>) -> Result<()> {
    let mut connection = BufReader::new(connection);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        ensure!(connection.read_line(&mut head).await? > 0, "the browser left");
    }
    let mut body = Vec::new();
    if head.starts_with("POST") {
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        body.resize(length.context("no length")?, 0);
        connection.read_exact(&mut body).await?;
        seen.lock().expect("no thread panics with it").push(serde_json::from_slice(&body)?);
        body.clear();
    } else if head.starts_with("GET /?") {
        body = std::fs::read(tools::root().join("tests/clients/browser/page.html"))?;
    }
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    connection.write_all(head.as_bytes()).await?;
    Ok(connection.write_all(&body).await?)
}

//! A client that exchanges raw JSON with the fixture server, mounted or as a program.

use std::process::Stdio;
use std::time::Duration;

use backends::rmcp::RmcpBackend;
use backends::{Backend as _, Link, LinkEvent};
use everything::Everything;
use protocol::{Message, SessionId};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// How the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Mounted in this process.
    Native,
    /// A child process connected by pipes.
    Program,
}

/// The test fails if no message arrives within this time.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Client {
    wire: Wire,
    requests: i64,
}

enum Wire {
    Link(Link),
    Pipes { _child: Box<Child>, input: ChildStdin, output: Lines<BufReader<ChildStdout>> },
}

impl Client {
    pub(crate) async fn connect(kind: Kind, page_items_max: Option<usize>) -> Self {
        let wire = match kind {
            Kind::Native => mount(page_items_max).await,
            Kind::Program => start(page_items_max),
        };
        Self { wire, requests: 0 }
    }

    /// A client after the handshake, with all capabilities.
    pub(crate) async fn initialized(kind: Kind) -> Self {
        let mut client = Self::connect(kind, None).await;
        let capabilities = json!({ "sampling": {}, "elicitation": {}, "roots": {} });
        client.initialize("2025-11-25", capabilities).await;
        client
    }

    pub(crate) async fn initialize(&mut self, version: &str, capabilities: Value) -> Value {
        let params = json!({
            "protocolVersion": version,
            "capabilities": capabilities,
            "clientInfo": { "name": "scenarios", "version": "1" },
        });
        let result = self.request("initialize", params).await["result"].clone();
        self.notify("notifications/initialized", json!({})).await;
        result
    }

    /// Sends a request and returns its id.
    pub(crate) async fn send(&mut self, method: &str, params: Value) -> i64 {
        self.requests += 1;
        let id = self.requests;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.write(&request).await;
        id
    }

    pub(crate) async fn notify(&mut self, method: &str, params: Value) {
        self.write(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
    }

    pub(crate) async fn answer(&mut self, question: &Value, result: Value) {
        self.write(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": result })).await;
    }

    /// The response to a request before which the server sends no message.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params).await;
        let message = self.next().await;
        assert_eq!(message["id"], id, "{message}");
        message
    }

    /// The result of a tool that sends no message before it.
    pub(crate) async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let params = json!({ "name": tool, "arguments": arguments });
        let answer = self.request("tools/call", params).await;
        assert!(answer["error"].is_null(), "{answer}");
        answer["result"].clone()
    }

    /// The text of a tool that sends no message before it.
    pub(crate) async fn text(&mut self, tool: &str, arguments: Value) -> String {
        text(&self.call(tool, arguments).await)
    }

    /// The next message of the server.
    pub(crate) async fn next(&mut self) -> Value {
        tokio::time::timeout(PATIENCE, self.read()).await.expect("a message of the server")
    }

    /// Whether the program has closed its output, and all of it was read.
    pub(crate) async fn ended(&mut self) -> bool {
        let Wire::Pipes { output, .. } = &mut self.wire else { return false };
        let rest = tokio::time::timeout(PATIENCE, output.next_line()).await;
        matches!(rest, Ok(Ok(None)))
    }

    async fn read(&mut self) -> Value {
        match &mut self.wire {
            Wire::Link(link) => match link.events.next().await {
                Some(LinkEvent::Message { message, .. }) => {
                    serde_json::from_slice(message.raw()).unwrap()
                }
                other => panic!("{other:?}"),
            },
            Wire::Pipes { output, .. } => {
                let line = output.next_line().await.unwrap().expect("the program runs");
                serde_json::from_str(&line).unwrap()
            }
        }
    }

    async fn write(&mut self, message: &Value) {
        let raw = message.to_string();
        match &mut self.wire {
            Wire::Link(link) => link.sender.send(Message::parse(raw.into()).unwrap()).unwrap(),
            Wire::Pipes { input, .. } => {
                input.write_all(raw.as_bytes()).await.unwrap();
                input.write_all(b"\n").await.unwrap();
            }
        }
    }
}

async fn mount(page_items_max: Option<usize>) -> Wire {
    let backend = RmcpBackend::new(move |_| match page_items_max {
        None => Everything::new(),
        Some(items) => Everything::new().with_page_items_max(items),
    });
    let mut link = backend.open(&SessionId::parse("scenarios").unwrap());
    assert!(matches!(link.events.next().await, Some(LinkEvent::Up)));
    Wire::Link(link)
}

fn start(page_items_max: Option<usize>) -> Wire {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everything"));
    if let Some(items) = page_items_max {
        command.env("EVERYTHING_PAGE_ITEMS_MAX", items.to_string());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let input = child.stdin.take().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap()).lines();
    Wire::Pipes { _child: Box::new(child), input, output }
}

/// The text of a tool's result, which is its only content.
pub(crate) fn text(result: &Value) -> String {
    assert_eq!(result["content"].as_array().map(Vec::len), Some(1), "{result}");
    result["content"][0]["text"].as_str().expect("a text").to_owned()
}

//! A client that follows the specification and shows the test every response.

use front::Running;
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};

/// One session of Streamable HTTP.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) url: String,
    pub(crate) id: String,
}

pub(crate) fn url(running: &Running, path: &str) -> String {
    format!("http://{}{path}", running.address())
}

pub(crate) fn initialize(revision: &str) -> Value {
    let params = json!({
        "protocolVersion": revision,
        "capabilities": {},
        "clientInfo": { "name": "scenario", "version": "1" },
    });
    json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params })
}

pub(crate) fn call(id: i64, tool: &str, arguments: Value) -> Value {
    let params = json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": id } });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
}

pub(crate) fn initialized() -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })
}

impl Session {
    /// A session whose handshake is done.
    pub(crate) async fn begin(running: &Running, revision: &str) -> Self {
        let client = Client::new();
        let mut session = Self { client, url: url(running, "/demo/mcp"), id: String::new() };
        let response = session.post(&initialize(revision)).await;
        assert_eq!(response.status(), 200);
        session.id = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        let result: Value = response.json().await.unwrap();
        assert_eq!(result["result"]["protocolVersion"], revision);
        let response = session.post(&initialized()).await;
        assert_eq!(response.status(), 202);
        assert_eq!(response.headers()["content-length"], "0");
        session
    }

    pub(crate) fn request(&self, method: Method) -> RequestBuilder {
        let request = self
            .client
            .request(method, &self.url)
            .header("Accept", "application/json, text/event-stream");
        if self.id.is_empty() { request } else { request.header("Mcp-Session-Id", &self.id) }
    }

    pub(crate) async fn post(&self, message: &Value) -> Response {
        self.request(Method::POST).json(message).send().await.unwrap()
    }

    pub(crate) async fn get(&self) -> Response {
        self.request(Method::GET).send().await.unwrap()
    }

    pub(crate) async fn delete(&self) -> Response {
        self.request(Method::DELETE).send().await.unwrap()
    }
}

/// The events of a stream, read as they arrive. `None` at a complete end.
pub(crate) struct Events {
    response: Response,
    read: String,
}

/// The fields of one event, without comments.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Event {
    pub(crate) name: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) retry: Option<String>,
    pub(crate) data: Option<String>,
}

impl Event {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.data.as_deref().unwrap()).unwrap()
    }
}

impl Events {
    pub(crate) fn of(response: Response) -> Self {
        assert_eq!(response.status(), 200);
        let headers = response.headers();
        assert_eq!(headers["content-type"], "text/event-stream");
        assert_eq!(headers["cache-control"], "no-cache, no-transform");
        assert_eq!(headers["x-accel-buffering"], "no");
        Self { response, read: String::new() }
    }

    /// The next event; an error where the connection broke off.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, reqwest::Error> {
        loop {
            if let Some((block, rest)) = self.read.split_once("\n\n") {
                let event = parse(block);
                self.read = rest.to_owned();
                if event != Event::default() {
                    return Ok(Some(event));
                }
                continue;
            }
            let Some(chunk) = self.response.chunk().await? else { return Ok(None) };
            self.read.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The next event that has data.
    pub(crate) async fn message(&mut self) -> Event {
        loop {
            let event = self.next().await.unwrap().expect("the stream ended");
            if event.data.as_deref().is_some_and(|data| !data.is_empty()) {
                return event;
            }
        }
    }
}

fn parse(block: &str) -> Event {
    let mut event = Event::default();
    for line in block.lines().filter(|line| !line.starts_with(':')) {
        let (field, value) = line.split_once(':').expect("every field has its colon");
        let value = Some(value.strip_prefix(' ').unwrap_or(value).to_owned());
        match field {
            "event" => event.name = value,
            "id" => event.id = value,
            "retry" => event.retry = value,
            "data" => event.data = value,
            _ => panic!("unknown field {field}"),
        }
    }
    event
}

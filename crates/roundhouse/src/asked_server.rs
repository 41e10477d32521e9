//! A server that a command starts once, asks one request after another, and stops.

use backends::{Backend, Link, LinkEvent};
use bytes::Bytes;
use protocol::{
    ListPage, Listed, Message, Method, Notification, Request, RequestId, Response, Revision,
    SessionId,
};
use serde_json::{Value, json};

/// Most pages of a list that are read of a server.
const PAGES_MAX: usize = 100;

/// The reason for a program that sends `initialize`, which no server does.
const SENT_BACK: &str =
    "sent our own `initialize` back; it is not an MCP server: check `command` and `args`";

/// A link whose server is asked one request after another.
pub(crate) struct AskedServer {
    link: Link,
    next_id: i64,
    /// The result of `initialize`.
    welcome: Bytes,
}

impl AskedServer {
    /// Opens a session with the server, as a client with this name and these capabilities.
    pub(crate) async fn open(
        backend: &dyn Backend,
        name: &str,
        capabilities: Value,
    ) -> Result<Self, String> {
        let session = SessionId::parse("check").ok_or("no session id")?;
        let link = backend.open(&session);
        let mut server = Self { link, next_id: 0, welcome: Bytes::new() };
        match server.initialize(name, capabilities).await {
            Ok(()) => Ok(server),
            Err(why) => {
                server.end();
                Err(why)
            }
        }
    }

    async fn initialize(&mut self, name: &str, capabilities: Value) -> Result<(), String> {
        let params = json!({
            "protocolVersion": Revision::NEWEST_STABLE.as_str(),
            "capabilities": capabilities,
            "clientInfo": { "name": name, "version": env!("CARGO_PKG_VERSION") },
        });
        self.welcome = self.call(Method::Initialize, Some(params)).await?;
        self.send(Message::Notification(Notification::new(Method::Initialized, None)))
    }

    /// The result of `initialize`.
    pub(crate) fn welcome(&self) -> &Bytes {
        &self.welcome
    }

    /// All pages of a list; none if the server has no such list.
    pub(crate) async fn list(&mut self, listed: Listed) -> Result<Vec<Bytes>, String> {
        let read = protocol::InitializeResult::read(&self.welcome);
        if !read.is_ok_and(|read| read.capabilities.lists(listed)) {
            return Ok(Vec::new());
        }
        let (mut pages, mut cursor) = (Vec::new(), None::<String>);
        for _ in 0..PAGES_MAX {
            let params = cursor.map(|cursor| json!({ "cursor": cursor }));
            let page = self.call(listed.method(), params).await?;
            cursor = ListPage::read(&page, listed).and_then(|page| page.next_cursor);
            pages.push(page);
            if cursor.is_none() {
                break;
            }
        }
        Ok(pages)
    }

    /// Ignores the messages of the server until it ends. Returns why.
    pub(crate) async fn ignore(&mut self) -> String {
        loop {
            if let Err(why) = self.next_response().await {
                return why;
            }
        }
    }

    /// Ends the session for good.
    pub(crate) fn end(self) {
        self.link.end();
    }

    fn send(&self, message: Message) -> Result<(), String> {
        self.link.sender.send(message).map_err(|error| error.to_string())
    }

    /// Sends a request and waits for its response. Requests of the server are refused, and other messages ignored.
    async fn call(&mut self, method: Method, params: Option<Value>) -> Result<Bytes, String> {
        self.next_id += 1;
        let id = RequestId::from(self.next_id);
        let name = method.as_str().to_owned();
        let params = params.map(|params| params.to_string());
        let request = Request::new(id.clone(), method, params.as_deref().map(str::as_bytes));
        self.send(Message::Request(request))?;
        loop {
            let response = self.next_response().await?;
            if response.id.as_ref() == Some(&id) {
                return response.outcome().map_err(|error| {
                    format!("answered `{name}` with the error {}", String::from_utf8_lossy(&error))
                });
            }
        }
    }

    /// The next response of the server.
    async fn next_response(&mut self) -> Result<Response, String> {
        while let Some(event) = self.link.events.next().await {
            let event = match event {
                LinkEvent::Positioned { message: Some(message), about, .. } => {
                    LinkEvent::Message { message, about }
                }
                event => event,
            };
            match event {
                LinkEvent::Message { message: Message::Response(response), .. } => {
                    return Ok(response);
                }
                LinkEvent::Message { message: Message::Request(request), .. } => {
                    if request.method == Method::Initialize {
                        return Err(SENT_BACK.to_owned());
                    }
                    let refused = Response::error(Some(request.id), -32601, "not supported", None);
                    self.send(Message::Response(refused))?;
                }
                LinkEvent::Down { reason } => return Err(reason),
                LinkEvent::Up
                | LinkEvent::Message { .. }
                | LinkEvent::Positioned { .. }
                | LinkEvent::Saved { .. }
                | LinkEvent::Returned { .. }
                | LinkEvent::StateLost
                | LinkEvent::RoomWanted
                | LinkEvent::Retired => {}
            }
        }
        Err("the server ended".into())
    }
}

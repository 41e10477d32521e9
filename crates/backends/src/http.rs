//! MCP servers that are reached over HTTP.
//!
//! Every link is a session of its own with the server. The session's rules are those of
//! [`upstream::Machine`]; this module performs its effects. [`Link::end`] ends the session at the server. A
//! link that is dropped leaves it to the next owner of the client's session.

mod drive;

use std::sync::Arc;
use std::time::Duration;

use budget::Share;
use protocol::SessionId;
pub use upstream::{
    CredentialProblem, Grant, HttpSettings, IDLE_MAX, Linking, PendingLink, Returned, Step, User,
    UserKey, Vault, VaultUnavailable, random, tag,
};

use crate::{Backend, Exchanging, LatestTokens, Link, LinkLimits, SavedLink};

/// Reaches one server for every session that opens a link.
pub struct HttpBackend {
    client: upstream::Client,
    /// A clone for each link.
    links: Arc<()>,
}

impl HttpBackend {
    /// Creates a backend with these settings, or says everything that is wrong with them. `share` is that of the
    /// tenant in the bytes that sessions keep: tokens of users are charged to it. `name` is that of the backend.
    /// Opens no connection.
    pub fn new(
        share: &Share,
        name: impl Into<String>,
        settings: &HttpSettings,
    ) -> Result<Self, Vec<String>> {
        let client = upstream::Client::new(share, name, settings)?;
        Ok(Self { client, links: Arc::new(()) })
    }
}

impl HttpBackend {
    fn open_link(&self, saved: Option<SavedLink>, tokens: Option<LatestTokens>) -> Link {
        let (link, end) = Link::pair(LinkLimits::default());
        let (client, counted) = (self.client.clone(), Arc::clone(&self.links));
        tokio::spawn(async move {
            drive::run(client, saved, end, tokens).await;
            drop(counted);
        });
        link
    }
}

impl Backend for HttpBackend {
    fn open(&self, _session: &SessionId) -> Link {
        self.open_link(None, None)
    }

    fn open_with(
        &self,
        _session: &SessionId,
        _principal: &[u8; 32],
        tokens: &dyn Fn() -> LatestTokens,
    ) -> Link {
        self.open_link(None, self.needs_tokens().then(tokens))
    }

    fn needs_tokens(&self) -> bool {
        self.client.needs_tokens_of_clients()
    }

    fn exchange(&self, user: &User) -> Option<Exchanging> {
        Some(Box::pin(self.client.exchange(user)?))
    }

    fn linkings(&self) -> Vec<Linking> {
        self.client.linking().cloned().into_iter().collect()
    }

    fn carry_on(
        &self,
        _session: &SessionId,
        _principal: &[u8; 32],
        saved: SavedLink,
        tokens: &dyn Fn() -> LatestTokens,
    ) -> Link {
        self.open_link(Some(saved), self.needs_tokens().then(tokens))
    }

    fn held_back_for(&self) -> Option<Duration> {
        self.client.held_back_for()
    }

    fn retire(&self) {
        self.client.retire();
    }

    fn is_stateful(&self) -> bool {
        self.client.is_stateful()
    }

    fn remarks(&self) -> Vec<String> {
        self.client.remarks()
    }

    fn links(&self) -> usize {
        // One is the backend's own.
        Arc::strong_count(&self.links) - 1
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use protocol::{Message, Method, Notification, Request, RequestId};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::{Semaphore, mpsc};
    use tokio::time::timeout;

    use super::*;
    use crate::{Backends, LinkEvent};

    const RESULT: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"a","version":"1"}}}"#;

    // holds: SES-08
    #[tokio::test]
    async fn a_node_that_stops_waits_until_a_server_has_ended_its_session() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut settings = HttpSettings::new(format!("http://{}/", listener.local_addr().unwrap()));
        settings.allow_networks.push("127.0.0.0/8".parse().unwrap());
        let share = budget::Budget::unlimited().unnamed_share("a");
        let backend = Arc::new(HttpBackend::new(&share, "a/b", &settings).unwrap());
        let backends = Backends::new([("a".into(), Arc::clone(&backend) as Arc<dyn Backend>)]);
        let mut link = backend.open(&SessionId::parse("s").unwrap());
        let initialize = Request::new(RequestId::from(1), Method::Initialize, Some(b"{}"));
        link.sender.send(Message::Request(initialize)).unwrap();

        let mut read = vec![0; 4_096];
        let (mut stream, _) = listener.accept().await.unwrap();
        let _length = stream.read(&mut read).await.unwrap();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nMcp-Session-Id: s1\r\n";
        let answer = format!("{head}Content-Length: {}\r\n\r\n{RESULT}", RESULT.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
        assert!(matches!(link.events.next().await, Some(LinkEvent::Up)));
        assert!(matches!(link.events.next().await, Some(LinkEvent::Message { .. })));

        link.end();
        // A reload replaces the backend; its session is still being ended.
        backends.replace([]);
        let length = stream.read(&mut read).await.unwrap();
        let delete = String::from_utf8_lossy(&read[..length]).to_lowercase();
        assert!(delete.starts_with("delete / http/1.1\r\n"), "{delete}");
        assert!(delete.contains("\r\nmcp-session-id: s1\r\n"), "{delete}");
        let begin = Instant::now();
        backends.links_ended(Duration::from_millis(100)).await;
        assert!(begin.elapsed() >= Duration::from_millis(100), "not answered yet");
        stream.write_all(b"HTTP/1.1 204 Gone\r\n\r\n").await.unwrap();
        backends.links_ended(Duration::from_secs(60)).await;
        assert!(begin.elapsed() < Duration::from_secs(30) && backend.links() == 0);
    }

    /// Occupies each thread for long messages until the value is dropped.
    fn occupy_threads_of_long_messages() -> impl Sized {
        let (begun, has_begun) = std::sync::mpsc::channel();
        let occupy = |_| {
            let (held, hold) = std::sync::mpsc::channel::<()>();
            let begun = begun.clone();
            let computing = fairness::compute(&"busy".into(), move || {
                begun.send(()).expect("the test waits");
                hold.recv().expect_err("nothing is sent");
            });
            has_begun.recv().expect("the thread begins");
            (held, computing)
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        (0..threads).map(occupy).collect::<Vec<_>>()
    }

    #[tokio::test]
    async fn a_long_message_is_handled_by_a_thread_for_long_messages() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut settings = HttpSettings::new(format!("http://{}/", listener.local_addr().unwrap()));
        settings.allow_networks.push("127.0.0.0/8".parse().unwrap());
        let share = budget::Budget::unlimited().unnamed_share("a");
        let backend = HttpBackend::new(&share, "a/b", &settings).unwrap();
        let busy = occupy_threads_of_long_messages();
        let links = [fairness::LONG_BYTES, 1].map(|length| {
            let link = backend.open(&SessionId::parse("s").unwrap());
            let params = format!(r#"{{"text":"{}"}}"#, "x".repeat(length));
            let initialize = Some(params.as_bytes());
            let initialize = Request::new(RequestId::from(1), Method::Initialize, initialize);
            link.sender.send(Message::Request(initialize)).unwrap();
            link
        });
        let mut read = vec![0; 4_096];
        // A short message that is sent later goes on meanwhile.
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut short = String::new();
        while !short.ends_with(r#""params":{"text":"x"}}"#) {
            let length = stream.read(&mut read).await.unwrap();
            assert!(length > 0, "{short}");
            short.push_str(&String::from_utf8_lossy(&read[..length]));
        }
        let early = timeout(Duration::from_millis(100), listener.accept()).await;
        assert!(early.is_err(), "the worker handled a long message");
        drop(busy);
        let later = timeout(Duration::from_secs(20), listener.accept()).await;
        assert!(later.is_ok_and(|accepted| accepted.is_ok()));
        drop(links);
    }

    /// A server that answers `tools/call` when the test lets it, and the requests that it gets, in order.
    struct Busy {
        url: String,
        answers: Arc<Semaphore>,
        got: mpsc::Receiver<String>,
    }

    impl Busy {
        async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            let (sender, got) = mpsc::channel(64);
            let answers = Arc::new(Semaphore::new(0));
            let permits = Arc::clone(&answers);
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(Self::serve(stream, sender.clone(), Arc::clone(&permits)));
                }
            });
            Self { url, answers, got }
        }

        async fn serve(mut stream: TcpStream, got: mpsc::Sender<String>, answers: Arc<Semaphore>) {
            loop {
                let mut read = vec![0; 4_096];
                let length = stream.read(&mut read).await.unwrap_or_default();
                let text = String::from_utf8_lossy(&read[..length]).into_owned();
                let answer = match text.split_once("\r\n\r\n") {
                    _ if text.starts_with("GET") => {
                        "HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n".into()
                    }
                    Some((_, body)) if body.contains("tools/call") => {
                        let _ = got.send(body.to_owned()).await;
                        answers.acquire().await.unwrap().forget();
                        "HTTP/1.1 202 OK\r\nContent-Length: 0\r\n\r\n".into()
                    }
                    Some((_, body)) if body.contains("initialize\"") => format!(
                        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{RESULT}",
                        RESULT.len()
                    ),
                    Some((_, body)) => {
                        let _ = got.send(body.to_owned()).await;
                        "HTTP/1.1 202 OK\r\nContent-Length: 0\r\n\r\n".into()
                    }
                    None => return,
                };
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        }

        async fn next(&mut self) -> String {
            let next = timeout(Duration::from_secs(20), self.got.recv()).await;
            next.unwrap().unwrap()
        }
    }

    fn cancel(id: i64) -> Message {
        let params = format!(r#"{{"requestId":{id}}}"#);
        Notification::new(Method::Cancelled, Some(params.as_bytes())).into()
    }

    #[tokio::test]
    async fn a_cancellation_is_sent_behind_its_request_and_others_are_not_delayed() {
        let mut server = Busy::start().await;
        let mut settings = HttpSettings::new(&server.url);
        settings.allow_networks.push("127.0.0.0/8".parse().unwrap());
        // Three of them are for requests.
        settings.connections_max = 8;
        let share = budget::Budget::unlimited().unnamed_share("a");
        let backend = HttpBackend::new(&share, "a/b", &settings).unwrap();
        let mut link = backend.open(&SessionId::parse("s").unwrap());
        let send = |message: Message| link.sender.send(message).unwrap();
        let request = |id, method| Request::new(RequestId::from(id), method, Some(b"{}")).into();
        send(request(1, Method::Initialize));
        assert!(matches!(link.events.next().await, Some(LinkEvent::Up)));
        assert!(matches!(link.events.next().await, Some(LinkEvent::Message { .. })));
        send(Notification::new(Method::Initialized, None).into());
        assert!(server.next().await.contains("initialized"));
        for id in 2..=5 {
            send(request(id, Method::ToolsCall));
        }
        // The fourth waits for a connection of the others.
        for _ in 0..3 {
            assert!(server.next().await.contains("tools/call"));
        }
        send(cancel(5));
        send(Notification::new(Method::RootsListChanged, None).into());
        assert!(server.next().await.contains("list_changed"), "another message was delayed");
        server.answers.add_permits(1);
        assert!(server.next().await.contains("tools/call"), "the cancellation came first");
        assert!(server.next().await.contains(r#"{"requestId":5}"#));
    }

    /// Answers `initialize`, and a call with a stream of so many messages.
    async fn flood(mut stream: TcpStream, message: &str, count: usize) {
        loop {
            let mut read = vec![0; 4_096];
            let length = stream.read(&mut read).await.unwrap_or_default();
            let text = String::from_utf8_lossy(&read[..length]).into_owned();
            let (kind, body) = match text.split_once("\r\n\r\n") {
                Some((_, body)) if body.contains("initialize\"") => ("json", RESULT.to_owned()),
                Some((_, body)) if body.contains("tools/call") => {
                    ("event-stream", format!("data: {message}\n\n").repeat(count))
                }
                Some(_) => ("json", String::new()),
                None => return,
            };
            let kind = format!("{}/{kind}", if kind == "json" { "application" } else { "text" });
            let status = if body.is_empty() { "405 No" } else { "200 OK" };
            let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n");
            let answer = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    #[tokio::test]
    async fn messages_that_were_read_are_charged_until_the_session_has_them() {
        const COUNT: usize = 18;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut settings = HttpSettings::new(format!("http://{}/", listener.local_addr().unwrap()));
        settings.allow_networks.push("127.0.0.0/8".parse().unwrap());
        let text = "x".repeat(1 << 20);
        let message = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"data":"{text}"}}}}"#
        );
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let message = message.clone();
                tokio::spawn(async move { flood(stream, &message, COUNT).await });
            }
        });
        let share = budget::Budget::unlimited().unnamed_share("a");
        let backend = HttpBackend::new(&share, "a/b", &settings).unwrap();
        let mut link = backend.open(&SessionId::parse("s").unwrap());
        link.charge_to(&share);
        let request = |id, method| Request::new(RequestId::from(id), method, Some(b"{}")).into();
        link.sender.send(request(1, Method::Initialize)).unwrap();
        assert!(matches!(link.events.next().await, Some(LinkEvent::Up)));
        assert!(matches!(link.events.next().await, Some(LinkEvent::Message { .. })));
        link.sender.send(request(2, Method::ToolsCall)).unwrap();
        // The session takes none: its queue is full after 8 MiB, and the others wait.
        let all_are_charged = async {
            while share.used() < COUNT << 20 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(60), all_are_charged).await.unwrap();
        for _ in 0..COUNT {
            assert!(matches!(link.events.next().await, Some(LinkEvent::Message { .. })));
        }
        let nothing_is_left = async {
            while share.used() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(60), nothing_is_left).await.unwrap();
    }

    /// Answers the first request of each connection if it is `initialize`, and nothing else.
    async fn serve_only_initialize(listener: TcpListener) {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut read = vec![0; 4_096];
            let length = stream.read(&mut read).await.unwrap_or_default();
            if String::from_utf8_lossy(&read[..length]).contains("initialize\"") {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
                let answer = format!("{head}Content-Length: {}\r\n\r\n{RESULT}", RESULT.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            held.push(stream);
        }
    }

    #[tokio::test]
    async fn messages_that_a_server_does_not_accept_fill_the_link_and_start_no_more_exchanges() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut settings = HttpSettings::new(format!("http://{}/", listener.local_addr().unwrap()));
        settings.allow_networks.push("127.0.0.0/8".parse().unwrap());
        tokio::spawn(serve_only_initialize(listener));
        let share = budget::Budget::unlimited().unnamed_share("a");
        let backend = HttpBackend::new(&share, "a/b", &settings).unwrap();
        let mut link = backend.open(&SessionId::parse("s").unwrap());
        let initialize = Request::new(RequestId::from(1), Method::Initialize, Some(b"{}"));
        link.sender.send(Message::Request(initialize)).unwrap();
        assert!(matches!(link.events.next().await, Some(LinkEvent::Up)));
        assert!(matches!(link.events.next().await, Some(LinkEvent::Message { .. })));
        let mut accepted = 0;
        while link.sender.send(cancel(accepted)).is_ok() {
            accepted += 1;
            assert!(accepted < 2_000, "the link has no bound");
            tokio::task::yield_now().await;
        }
        // The session's end is noticed although no message is taken.
        drop(link);
        let ended = async {
            while backend.links() > 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(5), ended).await.unwrap();
    }
}

//! A front on a free port, and a client that sends exactly the given bytes.

pub(crate) mod parrot;
pub(crate) mod session;

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use actors::Handle;
use backends::Backends;
use front::{AdminAddress, AdminSettings, AdminToken, Reporting, Running, Settings, serve};
use telemetry::{Access, AccessLog, Readiness, TenantLabels};
use tenants::{Tenant, Tenants};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// The token that authorises an operator.
pub(crate) const TOKEN: &str = "a-token-for-operators";

/// The head that a well-behaved client sends.
pub(crate) const POLITE: &str = "Content-Type: application/json\r\n\
     Accept: application/json, text/event-stream\r\n";

/// A front with the tenants `demo` and `picky`; the latter allows `https://picky.example`.
pub(crate) fn start(change: impl FnOnce(&mut Settings)) -> Running {
    start_with(Backends::default(), Readiness::default(), change)
}

pub(crate) fn start_with(
    backends: Backends,
    readiness: Readiness,
    change: impl FnOnce(&mut Settings),
) -> Running {
    run(handle(backends), readiness, change)
}

/// A front and the sessions behind it.
pub(crate) struct Node {
    pub(crate) running: Running,
    pub(crate) handle: Handle,
}

pub(crate) fn node(backends: Backends, change: impl FnOnce(&mut Settings)) -> Node {
    let handle = handle(backends);
    Node { running: run(handle.clone(), Readiness::default(), change), handle }
}

pub(crate) fn handle(backends: Backends) -> Handle {
    let store = Arc::new(store::Memory::default());
    Handle::new(actors::NodeParts::alone(actors::Settings::default(), store, backends))
}

/// A front whose listener for operators has these settings; the address is replaced unless it is a
/// Unix socket.
pub(crate) fn start_with_admin(admin: AdminSettings) -> Running {
    run_with(handle(Backends::default()), Readiness::default(), |_| {}, admin)
}

/// Where operators connect.
pub(crate) fn admin_address(running: &Running) -> SocketAddr {
    match running.admin_address() {
        AdminAddress::Tcp(address) => *address,
        AdminAddress::Unix(path) => panic!("{}", path.display()),
    }
}

fn run(handle: Handle, readiness: Readiness, change: impl FnOnce(&mut Settings)) -> Running {
    let admin = AdminSettings { token: AdminToken::new(TOKEN), ..AdminSettings::default() };
    run_with(handle, readiness, change, admin)
}

fn run_with(
    handle: Handle,
    readiness: Readiness,
    change: impl FnOnce(&mut Settings),
    mut admin: AdminSettings,
) -> Running {
    let mut settings =
        Settings { listen: "127.0.0.1:0".parse().unwrap(), workers: 1, ..Settings::default() };
    change(&mut settings);
    if matches!(admin.listen, AdminAddress::Tcp(_)) {
        admin.listen = "127.0.0.1:0".parse().unwrap();
    }
    let mut picky = tenant("picky");
    picky.allowed_origins = vec!["https://picky.example".to_owned()];
    let tenants = Tenants::new([tenant("demo"), picky]);
    let bodies = settings.body_budget(["demo", "picky"].map(|name| (name.into(), None)));
    let reporting = reporting();
    serve(&settings, &admin, handle, tenants, bodies, readiness, &reporting).unwrap()
}

/// The access log of every front of this test: each test is a process.
pub(crate) fn access_log() -> &'static AccessLog {
    static LOG: LazyLock<AccessLog> = LazyLock::new(|| {
        let settings =
            telemetry::Settings { access: Access::All, ..telemetry::Settings::default() };
        AccessLog::collecting(&settings)
    });
    &LOG
}

fn reporting() -> Reporting {
    let labels = TenantLabels::new(["demo".into()], 1);
    Reporting {
        access_log: access_log().clone(),
        node: "here".into(),
        labels,
        ..Reporting::default()
    }
}

fn tenant(name: &str) -> Tenant {
    Tenant::new(name, &tenants::Settings::open()).unwrap()
}

/// A response as received.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    /// The value of a header, whatever its case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The JSON-RPC error's code, after checking that it answers no request.
    pub(crate) fn code_without_id(&self) -> i64 {
        let error: serde_json::Value = serde_json::from_str(&self.body).expect(&self.body);
        assert!(error.get("id").is_none(), "{error}");
        error["error"]["code"].as_i64().expect(&self.body)
    }
}

/// A connection that is written to and read from as bytes.
pub(crate) struct Wire<S = TcpStream>(pub(crate) S);

impl Wire {
    pub(crate) async fn open(running: &Running) -> Self {
        Self(TcpStream::connect(running.address()).await.unwrap())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// The next response, up to the length it announces. Panics on a timeout.
    pub(crate) async fn receive(&mut self) -> Reply {
        let reading = async {
            let mut read = Vec::new();
            loop {
                if let Some(reply) = whole(&read) {
                    return reply;
                }
                let mut piece = [0; 4096];
                let count = self.0.read(&mut piece).await.expect("the connection was reset");
                assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&read));
                read.extend_from_slice(&piece[..count]);
            }
        };
        tokio::time::timeout(Duration::from_secs(20), reading).await.expect("no answer")
    }

    /// Everything until the other end closes the connection.
    pub(crate) async fn receive_until_close(&mut self) -> String {
        let mut read = Vec::new();
        let reading = self.0.read_to_end(&mut read);
        tokio::time::timeout(Duration::from_secs(20), reading).await.expect("not closed").unwrap();
        String::from_utf8(read).unwrap()
    }
}

fn whole(read: &[u8]) -> Option<Reply> {
    let text = String::from_utf8_lossy(read);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let reply = Reply { status, head: head.to_owned(), body: body.to_owned() };
    let length = reply.header("content-length").map_or(0, |length| length.parse().unwrap());
    (body.len() >= length).then_some(reply)
}

/// One request on a connection of its own. `Host` is added where `headers` has none.
pub(crate) async fn send_request(
    running: &Running,
    line: &str,
    headers: &str,
    body: &str,
) -> Reply {
    let mut wire = Wire::open(running).await;
    wire.send(request(line, headers, body)).await;
    wire.receive().await
}

pub(crate) fn request(line: &str, headers: &str, body: &str) -> String {
    let names_host = headers.lines().any(|line| line.to_lowercase().starts_with("host:"));
    let host = if names_host { "" } else { "Host: localhost\r\n" };
    let length =
        if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    format!("{line} HTTP/1.1\r\n{host}{headers}{length}\r\n{body}")
}

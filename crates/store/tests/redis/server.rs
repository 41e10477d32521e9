//! Redis servers that are stopped with the test that started them.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

#[path = "../../../../tests/src/ports.rs"]
mod ports;

/// How long a server may take to start on a busy machine.
const START: Duration = Duration::from_secs(20);

/// One Redis process on a port of 127.0.0.1, killed when this is dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) dir: TempDir,
    arguments: Vec<String>,
    /// User and password as in a URL.
    login: String,
    process: Child,
    /// The server ends when this is closed.
    _leash: ChildStdin,
}

impl Server {
    /// A server without persistence, with these arguments in addition.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let port = free_port();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self::start_at(port, tempfile::tempdir().expect("a directory"), arguments)
    }

    /// A Sentinel that watches the primary at this port under the name `roundhouse`.
    pub(crate) fn sentinel(primary: u16, password: Option<&str>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("sentinel.conf");
        let config = format!(
            "bind 127.0.0.1\n\
             sentinel monitor roundhouse 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds roundhouse 500\n\
             sentinel failover-timeout roundhouse 3000\n"
        );
        let own = password
            .map(|word| format!("requirepass {word}\nsentinel sentinel-pass {word}\n"))
            .unwrap_or_default();
        let config = config + &own;
        std::fs::write(&path, config).expect("written");
        let arguments = vec![path.to_str().expect("a path").to_owned(), "--sentinel".into()];
        let mut server = Self::start_at(free_port(), dir, arguments);
        server.login = password.map(|word| format!(":{word}@")).unwrap_or_default();
        server
    }

    /// A server that accepts TLS only, with the files `ca`, `cert` and `key` in its directory.
    pub(crate) fn with_tls(dir: TempDir, arguments: &[&str]) -> Self {
        let port = free_port();
        let file = |name: &str| dir.path().join(name).to_str().expect("a path").to_owned();
        let mut all: Vec<String> = ["--port", "0", "--tls-port", &port.to_string()]
            .into_iter()
            .chain(["--tls-ca-cert-file", &file("ca"), "--tls-cert-file", &file("cert")])
            .chain(["--tls-key-file", &file("key")])
            .map(str::to_owned)
            .collect();
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        Self::start_at(port, dir, all)
    }

    fn start_at(port: u16, dir: TempDir, arguments: Vec<String>) -> Self {
        let log = dir.path().join("log");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/local/redis-test");
        let program =
            std::env::var("ROUNDHOUSE_TEST_REDIS").unwrap_or_else(|_| "redis-server".into());
        let mut command = Command::new(script);
        command.arg("run").arg(program).current_dir(dir.path()).stdin(Stdio::piped());
        if arguments.iter().any(|argument| argument.ends_with(".conf")) {
            command.args(&arguments).arg("--port").arg(port.to_string());
        } else {
            command
                .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
                .args(["--port", &port.to_string()])
                .args(&arguments);
        }
        command.arg("--logfile").arg(&log).arg("--dir").arg(dir.path());
        command.arg("--pidfile").arg(dir.path().join("pid"));
        let mut process = command.stdout(Stdio::null()).spawn().expect("redis-test starts");
        let leash = process.stdin.take().expect("piped");
        let login = login_in(&arguments);
        let server = Self { port, dir, arguments, login, process, _leash: leash };
        server.wait_until_it_listens();
        server
    }

    fn wait_until_it_listens(&self) {
        let until = Instant::now() + START;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() || self.pid().is_none()
        {
            let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < until, "no redis-server (7.0 or newer) listens: {}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}127.0.0.1:{}", self.login, self.port)
    }

    /// A separate connection for the test.
    pub(crate) async fn connect(&self) -> MultiplexedConnection {
        connect(&self.url()).await
    }

    /// Runs a command and reads its answer.
    pub(crate) async fn run<T: FromRedisValue>(&self, command: &[&str]) -> T {
        run(&mut self.connect().await, command).await
    }

    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process and starts another on the same port.
    pub(crate) fn restart(self) -> Self {
        let (port, arguments) = (self.port, self.arguments.clone());
        drop(self);
        // A killed process keeps its sockets for a moment: it is no child of this one, so none waits for it.
        let until = Instant::now() + START;
        while TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(Instant::now() < until, "the killed server still has port {port}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self::start_at(port, tempfile::tempdir().expect("a directory"), arguments)
    }

    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn pid(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(self.dir.path().join("pid")).ok()?;
        Pid::from_raw(text.trim().parse().ok()?)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid().expect("a pid"), signal).expect("the server runs");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The password in the arguments.
fn login_in(arguments: &[String]) -> String {
    let password = arguments.windows(2).find(|pair| pair[0] == "--requirepass");
    password.map(|pair| format!(":{}@", pair[1])).unwrap_or_default()
}

pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    let client = Client::open(url).expect("a URL");
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(START));
    client.get_multiplexed_async_connection_with_config(&config).await.expect("connected")
}

pub(crate) async fn run<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &[&str],
) -> T {
    let mut words = Cmd::new();
    words.arg(command);
    words.query_async(connection).await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// A port on which no process listened at the time of the check. A server of a cluster also listens on the
/// port 10,000 above, so that one is free too.
pub(crate) fn free_port() -> u16 {
    ports::free_port().expect("a port that no other test process has")
}

/// The permissions that a store needs, as in the operator's documentation.
pub(crate) const RIGHTS: &str = include_str!("../../../../docs/redis.acl");

/// A server that all tests share.
pub(crate) fn shared() -> &'static Server {
    static SHARED: LazyLock<Server> = LazyLock::new(|| {
        let rights = RIGHTS.lines().filter(|line| !line.starts_with('#'));
        let rights = rights.flat_map(str::split_whitespace);
        let user = ["--user", "roundhouse", "on", ">in-house", "~*"];
        Server::start(&user.into_iter().chain(rights).collect::<Vec<_>>())
    });
    &SHARED
}

/// The URL of the shared server, for a user with the permissions that a store needs.
pub(crate) fn shared_url() -> String {
    format!("redis://roundhouse:in-house@127.0.0.1:{}", shared().port)
}

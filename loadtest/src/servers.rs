//! Our own servers that are measured. Each prints its URLs and serves until its standard input
//! closes.

use std::borrow::Cow;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use actix_web::{App, HttpResponse, HttpServer, web};
use clap::{Args, ValueEnum};
use futures_util::stream;
use roundhouse::native::{self, Call, Error, Handler, Info};
use roundhouse::settings::TenantSettings;
use roundhouse::{Bytes, Node, Roundhouse, Settings};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tenants::{KeySettings, RateSettings};
use tokio::time::{Instant, interval_at};

use crate::issuer::Issuer;
use crate::{child, cluster, collector, service, target};

/// The maximum number of sessions of a measured node, and of its tenant.
const SESSIONS_MAX: usize = 100_000;
/// The maximum number of connections of a measured node: above the limit of open files of a
/// client process.
const CONNECTIONS_MAX: usize = 25_000;

/// The key of the clients of `handler-keys`: as long as a key that `roundhouse key` makes, and no secret.
const KEY: &str = "rhk_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The limits of `handler-limits`: far above its load, so that each request takes a token and none waits.
const RATE: &str = "1000000/s";
const EXCHANGES_MAX: u32 = 1_000_000;

/// Comments that are due in the same period of this length are written at the same time, as a
/// node does.
const TICK_MS: u64 = 100;

/// The arguments of `serve`.
#[derive(Args)]
pub(crate) struct Serve {
    /// The server to run.
    which: Which,
    /// The Redis of a cluster node.
    #[arg(long, default_value = "")]
    store: String,
    /// A session of a cluster node falls asleep after one idle second.
    #[arg(long)]
    sleepy: bool,
    /// A cluster node encrypts its connections to the others, although they are on loopback.
    #[arg(long)]
    encrypted: bool,
}

/// One of our own servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Which {
    /// Bare actix-web, JSON.
    BareJson,
    /// Bare actix-web, SSE.
    BareSse,
    /// A node with a handler.
    Handler,
    /// A node with a handler, whose clients have keys.
    HandlerKeys,
    /// A node with a handler, whose clients have tokens of an issuer.
    HandlerOauth,
    /// A node with a handler, whose tenant has limits of the cluster.
    HandlerLimits,
    /// A node with a handler, which writes an audit log.
    HandlerAudit,
    /// A node with a handler, which traces one message in a hundred.
    HandlerTraces,
    /// A node with a handler, and a Redis for its records and logs.
    HandlerRedis,
    /// A node with a mounted rmcp service.
    RmcpMounted,
    /// rmcp's own server.
    RmcpOwn,
    /// A node with a handler and a Redis, whose idle sessions fall asleep.
    HandlerSleepy,
    /// Three nodes on a Redis.
    Cluster,
    /// Three nodes on a Redis, with encrypted connections between them.
    ClusterEncrypted,
    /// A node with a program over its standard streams.
    Stdio,
    /// A node in front of rmcp's own server.
    Http,
    /// One of several nodes, started by `cluster`.
    Member,
    /// The program of `stdio`.
    Child,
}

/// Runs the server.
pub(crate) fn serve(serve: &Serve) -> anyhow::Result<()> {
    if serve.which == Which::Child {
        return child::serve();
    }
    crate::raise_file_limit();
    // The parent process holds the other end of the pipe, which closes when the parent ends.
    std::thread::spawn(|| {
        let _closed = std::io::stdin().read_to_end(&mut Vec::new());
        let _there_was_none = std::fs::remove_dir_all(folder());
        std::process::exit(0);
    });
    match serve.which {
        Which::BareJson => bare(|| web::post().to(echo)),
        Which::BareSse => bare(|| web::post().to(ten_events)),
        Which::Handler => nodes(async {
            let node = node(Settings::default())
                .tenant("quiet", open(), roundhouse::native(Echo))
                .tenant("noisy", open(), roundhouse::native(Echo));
            let node = node.start().await?;
            Ok(([node.url("quiet"), node.url("noisy")].join(" "), vec![node]))
        }),
        Which::HandlerKeys => nodes(async {
            let keys = [("client".to_owned(), KeySettings::of_key(KEY))].into();
            let tenant = tenants::Settings { auth: Some("keys".into()), keys, ..open() };
            let (url, nodes) = echo_node(Settings::default(), tenant).await?;
            Ok((url.replacen("http://", &format!("http://{KEY}@"), 1), nodes))
        }),
        Which::HandlerOauth => nodes(async {
            let issuer = Issuer::start().await?;
            let tenant = tenants::Settings {
                auth: Some("oauth".into()),
                oauth: issuer.settings(),
                ..open()
            };
            let mut settings = Settings::default();
            settings.front.public_url = Some(Issuer::PUBLIC_URL.to_owned());
            let (url, nodes) = echo_node(settings, tenant).await?;
            Ok((url.replacen("http://", &format!("http://{}@", issuer.token), 1), nodes))
        }),
        Which::HandlerLimits => nodes(async {
            let rate = RateSettings { rate: RATE.into(), ..RateSettings::default() };
            let mut tenant = tenants::Settings { rates: [("all".into(), rate)].into(), ..open() };
            tenant.limits.cluster_exchanges_max = Some(EXCHANGES_MAX);
            echo_node(Settings::default(), tenant).await
        }),
        Which::HandlerAudit => nodes(async {
            let mut settings = Settings::default();
            std::fs::create_dir_all(folder())?;
            settings.audit.to = audit::To::File;
            settings.audit.file = folder().join("audit.jsonl");
            settings.audit.files_max = 1;
            echo_node(settings, open()).await
        }),
        Which::HandlerTraces => nodes(async {
            let mut settings = Settings::default();
            settings.otlp.endpoint = collector::start().await?;
            settings.otlp.traces_one_in = 100;
            echo_node(settings, open()).await
        }),
        Which::RmcpMounted => nodes(async {
            let service = roundhouse::rmcp(service::Service::default);
            let node = node(Settings::default()).tenant("demo", open(), service).start().await?;
            Ok((node.url("demo"), vec![node]))
        }),
        Which::RmcpOwn => service::serve(),
        Which::HandlerRedis => cluster::serve(1, None),
        Which::HandlerSleepy => cluster::serve(1, Some("--sleepy")),
        Which::Cluster => cluster::serve(3, None),
        Which::ClusterEncrypted => cluster::serve(3, Some("--encrypted")),
        Which::Stdio => nodes(stdio()),
        Which::Http => nodes(http()),
        Which::Child => child::serve(),
        Which::Member => nodes(cluster::member(&serve.store, serve.sleepy, serve.encrypted)),
    }
}

/// A node with the echo, for one tenant. Returns its URL too.
async fn echo_node(
    settings: Settings,
    tenant: tenants::Settings,
) -> anyhow::Result<(String, Vec<Node>)> {
    let node = node(settings).tenant("demo", tenant, roundhouse::native(Echo)).start().await?;
    Ok((node.url("demo"), vec![node]))
}

/// The folder of this process for what it writes. It is removed at the end.
fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("roundhouse-loadtest-{}", std::process::id()))
}

/// A node with this program as its server.
async fn stdio() -> anyhow::Result<(String, Vec<Node>)> {
    let command = std::env::current_exe()?;
    let backend = json!({ "kind": "stdio", "command": command, "args": ["serve", "child"] });
    let mut settings = Settings::default();
    settings.tenants.insert("demo".to_owned(), tenant(backend)?);
    let node = node(settings).start().await?;
    Ok((node.url("demo"), vec![node]))
}

/// A node in front of rmcp's own server, which is another process on the same core.
async fn http() -> anyhow::Result<(String, Vec<Node>)> {
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.args(["serve", "rmcp-own"]);
    // It ends with this process, which holds its standard input.
    let upstream = Box::leak(Box::new(target::start("rmcp-own", command)?));
    let url = upstream.target.endpoints[0].to_string();
    let backend = json!({ "kind": "http", "url": url, "allow_networks": ["127.0.0.0/8"] });
    let mut settings = Settings::default();
    settings.tenants.insert("demo".to_owned(), tenant(backend)?);
    let node = node(settings).start().await?;
    Ok((node.url("demo"), vec![node]))
}

/// An open tenant with this backend, from settings as an operator writes them.
pub(crate) fn tenant(backend: serde_json::Value) -> anyhow::Result<TenantSettings> {
    let backends = [("echo".to_owned(), serde_json::from_value(backend)?)].into();
    Ok(TenantSettings { tenant: open(), backends, ..TenantSettings::default() })
}

/// A node with default settings, except its bounds.
pub(crate) fn node(mut settings: Settings) -> Roundhouse {
    settings.front.connections_max = CONNECTIONS_MAX;
    settings.sessions.sessions_max = SESSIONS_MAX;
    Roundhouse::from_settings(settings).on_free_ports()
}

/// An open tenant that may have as many sessions as its node.
pub(crate) fn open() -> tenants::Settings {
    let limits = tenants::Limits { sessions_max: SESSIONS_MAX, ..tenants::Limits::default() };
    tenants::Settings { limits, ..tenants::Settings::open() }
}

/// Bare actix-web with one route for POSTs, and GET streams that carry only comments.
fn bare(route: fn() -> actix_web::Route) -> anyhow::Result<()> {
    actix_web::rt::System::new().block_on(async {
        let app = move || App::new().route("/", route()).route("/", web::get().to(comments));
        let server = HttpServer::new(app)
            .workers(1)
            .max_connections(CONNECTIONS_MAX)
            .bind(("127.0.0.1", 0))?;
        for address in server.addrs() {
            say(&format!("http://{address}/"))?;
        }
        Ok(server.run().await?)
    })
}

/// The minimum work of a server: it parses the body and writes it back.
async fn echo(body: web::Json<serde_json::Value>) -> HttpResponse {
    HttpResponse::Ok().json(body.into_inner())
}

/// The minimum cost of a stream: ten events of the size of a progress notification and an
/// answer, each written separately.
async fn ten_events(_body: web::Json<serde_json::Value>) -> HttpResponse {
    let events = (1..=10).map(|number| {
        format!(
            "data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{{\"progressToken\":1,\"progress\":{number}}}}}\n\n"
        )
    });
    let answer = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[]}}\n\n";
    let all = events.chain([answer.to_owned()]);
    let all = all.map(|event| Ok::<_, std::convert::Infallible>(Bytes::from(event)));
    HttpResponse::Ok().content_type("text/event-stream").streaming(stream::iter(all))
}

/// The minimum cost of an open stream: a comment at the interval at which our nodes write one,
/// for all streams of a tick at the same time.
async fn comments() -> HttpResponse {
    let every =
        Duration::from_secs(roundhouse::Settings::default().sessions.session.keepalive_secs);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let to_tick = TICK_MS - u64::try_from(now.as_millis()).unwrap_or_default() % TICK_MS;
    let first = Instant::now() + every + Duration::from_millis(to_tick);
    let comments = stream::unfold(interval_at(first, every), |mut next| async {
        next.tick().await;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from_static(b":\n\n")), next))
    });
    HttpResponse::Ok().content_type("text/event-stream").streaming(comments)
}

/// Runs the nodes that `start` starts, and prints their URLs.
fn nodes(start: impl Future<Output = anyhow::Result<(String, Vec<Node>)>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (urls, _nodes) = start.await?;
        say(&urls)?;
        std::future::pending::<()>().await;
        Ok(())
    })
}

/// Prints the URLs for the parent process.
pub(crate) fn say(urls: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{urls}")?;
    out.flush()
}

/// The tools that every measured server has, on the `Handler` trait.
pub(crate) struct Echo;

#[derive(Deserialize)]
struct Params<'a> {
    name: &'a str,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

#[derive(Deserialize)]
struct Said<'a> {
    #[serde(borrow)]
    message: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Count {
    n: u32,
    interval_ms: u64,
}

/// The answer to `tools/list`.
pub(crate) const TOOLS: &[u8] = br#"{"tools":[{"name":"echo","description":"Answers with the message","inputSchema":{"type":"object","properties":{"message":{"type":"string"}},"required":["message"]}},{"name":"count","description":"Counts to n and reports each number as progress","inputSchema":{"type":"object","properties":{"n":{"type":"integer"},"interval_ms":{"type":"integer"}},"required":["n","interval_ms"]}}]}"#;

impl Handler for Echo {
    fn info(&self) -> Info {
        Info::new("echo", "1.0.0").capabilities(r#"{"tools":{}}"#)
    }

    async fn call(&self, call: Call) -> Result<Bytes, Error> {
        match call.method().as_str() {
            "tools/list" => Ok(Bytes::from_static(TOOLS)),
            "tools/call" => self.tool(&call).await,
            _ => Err(Error::method_not_found(call.method())),
        }
    }
}

impl Echo {
    async fn tool(&self, call: &Call) -> Result<Bytes, Error> {
        let params = call.params().unwrap_or_default();
        let Params { name, arguments } = read(&params)?;
        match name {
            "echo" => answer(&read::<Said<'_>>(arguments.get().as_bytes())?.message),
            "count" => {
                let Count { n, interval_ms } = read(arguments.get().as_bytes())?;
                let peer = call.peer();
                for number in 1..=n {
                    if interval_ms > 0 {
                        tokio::time::sleep(Duration::from_millis(interval_ms)).await;
                    }
                    let told = peer.progress(number.into(), None, None).await;
                    told.map_err(|_| Error::internal("the session has ended"))?;
                }
                answer(&format!("counted to {n}"))
            }
            _ => Err(Error::invalid_params("unknown tool")),
        }
    }
}

fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(json).map_err(|error| Error::invalid_params(error.to_string()))
}

/// The result of a tool with one text.
fn answer(text: &str) -> Result<Bytes, Error> {
    #[derive(Serialize)]
    struct Answer<'a> {
        content: [Content<'a>; 1],
    }
    #[derive(Serialize)]
    struct Content<'a> {
        r#type: &'static str,
        text: &'a str,
    }
    native::json(&Answer { content: [Content { r#type: "text", text }] })
}

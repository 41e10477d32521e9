//! The servers of ours that are measured. Each prints its URLs and serves until its input
//! closes.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use actix_web::{App, HttpResponse, HttpServer, web};
use clap::ValueEnum;
use roundhouse::native::{Call, Error, Handler, Info};
use roundhouse::{Bytes, Node, Roundhouse};
use serde::Deserialize;
use serde_json::value::RawValue;

/// One of our own servers.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum Which {
    /// Bare actix-web, JSON.
    BareJson,
    /// Bare actix-web, SSE.
    BareSse,
    /// A node with a handler.
    Handler,
    /// A node with a mounted rmcp service.
    RmcpMounted,
    /// rmcp's own server.
    RmcpOwn,
    /// Three nodes on a Redis.
    Cluster,
}

/// Serves it.
pub(crate) fn serve(which: Which) -> anyhow::Result<()> {
    // Whoever started this holds the other end, and is gone when it closes.
    std::thread::spawn(|| {
        let _closed = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match which {
        Which::BareJson => bare(web::post().to(echo)),
        Which::BareSse => bare(web::post().to(ten_events)),
        Which::Handler => nodes(async || {
            let node = Roundhouse::new()
                .open_tenant("quiet", roundhouse::native(Echo))
                .open_tenant("noisy", roundhouse::native(Echo));
            let node = node.on_free_ports().start().await?;
            Ok(([node.url("quiet"), node.url("noisy")].join(" "), vec![node]))
        }),
        Which::RmcpMounted => nodes(async || {
            let node = Roundhouse::new()
                .open_tenant("demo", roundhouse::rmcp(crate::service::Service::default));
            let node = node.on_free_ports().start().await?;
            Ok((node.url("demo"), vec![node]))
        }),
        Which::RmcpOwn => crate::service::serve(),
        Which::Cluster => nodes(crate::cluster::start),
    }
}

/// Bare actix-web with one route.
fn bare(route: actix_web::Route) -> anyhow::Result<()> {
    let route = std::cell::Cell::new(Some(route));
    actix_web::rt::System::new().block_on(async {
        let route = std::rc::Rc::new(route);
        let server = HttpServer::new(App::new).workers(1);
        let _ = (server, route);
        Ok(())
    })
}

async fn echo(body: web::Json<serde_json::Value>) -> HttpResponse {
    HttpResponse::Ok().json(body.into_inner())
}

async fn ten_events(body: web::Json<serde_json::Value>) -> HttpResponse {
    let _ = body;
    HttpResponse::Ok().finish()
}

fn nodes<F, S>(start: S) -> anyhow::Result<()>
where
    S: FnOnce() -> F,
    F: Future<Output = anyhow::Result<(String, Vec<Node>)>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (urls, _nodes) = start().await?;
        say(&urls)?;
        std::future::pending::<()>().await;
        Ok(())
    })
}

fn say(urls: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{urls}")?;
    out.flush()
}

/// Answers `echo` with its arguments, and counts for `count`.
pub(crate) struct Echo;

#[derive(Deserialize)]
struct Params<'a> {
    name: &'a str,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

#[derive(Deserialize)]
struct Count {
    n: u64,
    interval_ms: u64,
}

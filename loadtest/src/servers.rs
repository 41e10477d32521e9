//! The servers that are measured. Each prints its address and serves until it is killed.

use std::io::Write as _;

use actix_web::{App, HttpResponse, HttpServer, web};
use roundhouse::native::{Call, Error, Handler, Info};
use roundhouse::{Bytes, Roundhouse};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Bare actix-web: parses the body and echoes it.
pub(crate) fn bare() -> anyhow::Result<()> {
    actix_web::rt::System::new().block_on(async {
        let server = HttpServer::new(|| {
            App::new().route(
                "/",
                web::post().to(async |body: web::Json<serde_json::Value>| {
                    HttpResponse::Ok().json(body.into_inner())
                }),
            )
        })
        .workers(1)
        .bind(("127.0.0.1", 0))?;
        if let Some(address) = server.addrs().first() {
            say(&address.to_string())?;
        }
        Ok(server.run().await?)
    })
}

/// A node with an echo.
pub(crate) fn node() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let node = Roundhouse::new()
            .open_tenant("echo", roundhouse::native(Echo))
            .on_free_ports()
            .start()
            .await?;
        say(&node.address().to_string())?;
        std::future::pending::<()>().await;
        Ok(())
    })
}

fn say(address: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{address}")?;
    out.flush()
}

/// Answers a tool call with its arguments.
struct Echo;

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    arguments: &'a RawValue,
}

impl Handler for Echo {
    fn info(&self) -> Info {
        Info::new("echo", "1.0.0").capabilities(r#"{"tools":{}}"#)
    }

    async fn call(&self, call: Call) -> Result<Bytes, Error> {
        let params = call.params().unwrap_or_default();
        let params: Params<'_> = serde_json::from_slice(&params)
            .map_err(|_| Error::invalid_params("`arguments` is missing"))?;
        let arguments = params.arguments.get();
        Ok(Bytes::from(format!(r#"{{"content":[],"structuredContent":{arguments}}}"#)))
    }
}

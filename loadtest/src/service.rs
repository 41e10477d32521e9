//! One rmcp service on two HTTP servers: mounted in a node, and on rmcp's own Streamable HTTP
//! server. Only the HTTP server differs, so the measurements can be compared.

use std::sync::Arc;
use std::time::Duration;

use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::ProgressNotificationParam;
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, schemars, tool, tool_router};
use serde::Deserialize;

/// The tools that every measured server has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Service;

#[derive(Deserialize, schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Echo {
    message: String,
}

#[derive(Deserialize, schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Count {
    n: u32,
    interval_ms: u64,
}

#[tool_router(server_handler)]
impl Service {
    #[tool(description = "Answers with the message")]
    fn echo(&self, Parameters(echo): Parameters<Echo>) -> String {
        echo.message
    }

    #[tool(description = "Counts to n and reports each number as progress")]
    async fn count(
        &self,
        Parameters(count): Parameters<Count>,
        context: RequestContext<RoleServer>,
    ) -> Result<String, ErrorData> {
        for number in 1..=count.n {
            if count.interval_ms > 0 {
                tokio::time::sleep(Duration::from_millis(count.interval_ms)).await;
            }
            let Some(token) = context.meta.get_progress_token() else { continue };
            let progress = ProgressNotificationParam::new(token, number.into());
            let told = context.peer.notify_progress(progress).await;
            told.map_err(|_| ErrorData::internal_error("the client has disconnected", None))?;
        }
        Ok(format!("counted to {}", count.n))
    }
}

/// Runs the service on rmcp's own server, as its documentation shows: sessions, SSE answers,
/// axum. It has one thread, since one core is measured.
pub(crate) fn serve() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let service = StreamableHttpService::new(
            || Ok(Service),
            Arc::<LocalSessionManager>::default(),
            StreamableHttpServerConfig::default(),
        );
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        crate::servers::say(&format!("http://{}/mcp", listener.local_addr()?))?;
        let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
            // Without it, events wait for TCP acknowledgements, which would dominate the figures.
            let _as_it_is = stream.set_nodelay(true);
        });
        Ok(axum::serve(listener, axum::Router::new().nest_service("/mcp", service)).await?)
    })
}

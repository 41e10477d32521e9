//! An `rmcp` service as a tenant's server. Each session gets its own instance.
//!
//! `cargo run --example rmcp_service` serves it at http://127.0.0.1:8080/acme/mcp.

use std::sync::atomic::{AtomicU32, Ordering};

use rmcp::{tool, tool_router};
use roundhouse::Roundhouse;

#[derive(Default)]
struct Counter(AtomicU32);

#[tool_router(server_handler)]
impl Counter {
    #[tool(description = "Counts this session's calls")]
    fn count(&self) -> String {
        format!("call {}", self.0.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// The node; the tests start it too.
pub(crate) fn node() -> Roundhouse {
    Roundhouse::new().open_tenant("acme", roundhouse::rmcp(Counter::default))
}

#[tokio::main(flavor = "current_thread")]
#[allow(dead_code, reason = "the tests start the node themselves")]
async fn main() -> Result<(), roundhouse::Error> {
    node().listen("127.0.0.1:8080").serve().await
}

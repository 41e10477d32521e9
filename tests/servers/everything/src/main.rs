//! The fixture server as a program: MCP over stdin and stdout, with no other output on stdout.
//!
//! `EVERYTHING_PAGE_ITEMS_MAX` divides every list into pages of so many items.

use anyhow::Context as _;
use everything::Everything;
use rmcp::ServiceExt as _;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut server = Everything::new().as_program();
    if let Ok(items) = std::env::var("EVERYTHING_PAGE_ITEMS_MAX") {
        let items = items.parse().context("EVERYTHING_PAGE_ITEMS_MAX has to be a number")?;
        server = server.with_page_items_max(items);
    }
    server.serve(rmcp::transport::stdio_pipes()).await?.waiting().await?;
    Ok(())
}

//! The public conformance suite through nginx, in round robin over three nodes.

use anyhow::{Context, Result};
use tests::conformance;
use tests::deployment::Plan;

#[tokio::test]
async fn three_nodes_behind_a_balancer_conform_like_one() -> Result<()> {
    conform(Plan::demo()).await
}

#[tokio::test]
async fn three_nodes_with_servers_of_their_own_conform_like_one() -> Result<()> {
    conform(Plan::fixture()).await
}

async fn conform(plan: Plan) -> Result<()> {
    let cluster = plan.start().await?;
    for set in conformance::ALL {
        let passes = set.passes(&cluster.demo()).await;
        passes.with_context(|| format!("{set:?}\n{}", cluster.tails(20)))?;
    }
    Ok(())
}

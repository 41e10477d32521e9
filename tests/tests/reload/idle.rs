//! What tenants cost that no client uses.

use anyhow::{Result, ensure};
use tests::{Node, Setup, processes};

use super::{native, programs};

/// Most resident bytes of a tenant with a stdio server, of which none runs.
const TENANT_BYTES_MAX: u64 = 20_000;

/// How many tenants are measured, beside a few that both nodes have.
const TENANTS: usize = 1_000;

#[tokio::test]
async fn a_tenant_that_no_client_uses_costs_less_than_20_kb() -> Result<()> {
    const FEW: usize = 3;
    let resident = |count| {
        let node = Node::start(&Setup::config(native("called") + &programs(count)))?;
        processes::resident(node.pid())
    };
    let (few, many) = (resident(FEW)?, resident(FEW + TENANTS)?);
    let each = many.saturating_sub(few) / TENANTS as u64;
    println!("an idle tenant: {each} bytes ({few} bytes with {FEW}, {many} with {TENANTS} more)");
    ensure!(each < TENANT_BYTES_MAX, "an idle tenant costs {each} bytes");
    Ok(())
}

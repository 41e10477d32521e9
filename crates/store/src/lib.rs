//! What all nodes must agree on: session records, owners, logs, leases.

/// What every node can read and write.
#[async_trait::async_trait]
pub trait Store: Send + Sync + 'static {}

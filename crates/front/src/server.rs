//! The listener for clients and the one for operators, from bind to the last byte.

use std::future::ready;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix_http::{HttpService, KeepAlive, Request};
use actix_rt::task::JoinHandle;
use actix_web::dev::{Server, ServerHandle, ServiceFactory, fn_service};
use actors::Handle;
use budget::Budget;
use telemetry::{Readiness, Spanned};
use tenants::Tenants;
use tokio::net::TcpStream;

use crate::admin::{Access, ListenedAt, Operated, ServedClients};
use crate::admin_address::{AdminAddress, Bound};
use crate::admin_audit::OperatorRecords;
use crate::admin_host::AdminHosts;
use crate::admin_server::AdminServer;
use crate::bind::bind_tcp;
use crate::connection::ClientConnections;
use crate::connections_by_address::ConnectionsByAddress;
use crate::drain::Drain;
use crate::front::Front;
use crate::head_timeout::{Served, Serving, Timed, Timeouts};
use crate::places::{Places, connections_headroom};
use crate::tls::WorkerTls;
use crate::transport::Transport;
use crate::{
    AdminCredentials, AdminSettings, Error, Reporting, Settings, Tls, connection, metrics,
};

/// How long a connection that was answered before its body was read is still read, so that the
/// client can receive the answer. Then it is closed, whether or not the client still sends.
const LINGER: Duration = Duration::from_secs(5);

/// Longer than every grace period of [`Running::stop`], which is the one that takes effect.
const SHUTDOWN_SECS_MAX: u64 = 3_600;

/// Listens for clients and for operators. `bodies` is the memory for unfinished bodies
/// ([`Settings::body_budget`]). Exchanges are reported to `reporting`. Call it within an actix system: sessions run on the workers'
/// arbiters. Both sockets are bound when it returns.
pub fn serve(
    settings: &Settings,
    admin: &AdminSettings,
    handle: Handle,
    tenants: Tenants,
    bodies: Budget,
    readiness: Readiness,
    reporting: &Reporting,
) -> Result<Running, Error> {
    let operators = Operators::serve(admin, readiness)?;
    operators
        .serve_clients(settings, handle, &tenants, bodies, reporting)
        .map_err(|failed| failed.0)
}

/// The listener for operators, running before clients can be served.
pub struct Operators {
    server: AdminServer,
    tls: Option<Tls>,
    drain: Arc<Drain>,
    served: Arc<OnceLock<ServedClients>>,
    credentials: AdminCredentials,
}

impl Operators {
    /// Listens for operators. Call it within an actix system. The socket is bound when it returns.
    pub fn serve(admin: &AdminSettings, readiness: Readiness) -> Result<Self, Error> {
        metrics::register_metrics();
        identity::register_metrics();
        audit::register_metrics();
        let drain = Arc::new(Drain::default());
        let served = Arc::new(OnceLock::new());
        let credentials = AdminCredentials::new(admin);
        let access = Access {
            credentials: credentials.clone(),
            protect_metrics: admin.protect_metrics,
            place: match admin.listen {
                AdminAddress::Unix(_) => ListenedAt::Socket,
                AdminAddress::Tcp(_) => ListenedAt::Port(AdminHosts::new(&admin.allowed_hosts)),
            },
        };
        let operated = Operated::new(readiness, Arc::clone(&served), Arc::clone(&drain), access);
        let (bound, address) =
            Bound::new(&admin.listen).map_err(refused(&admin.listen, "admin.listen"))?;
        let server = AdminServer::start(bound, address, operated);
        Ok(Self { server, tls: None, drain, served, credentials })
    }

    /// Has clients served over TLS.
    pub fn with_tls(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    /// The credentials of operators, which may be replaced while the node runs.
    pub fn credentials(&self) -> AdminCredentials {
        self.credentials.clone()
    }

    /// Listens for clients as well. If that fails, operators are still served.
    pub fn serve_clients(
        self,
        settings: &Settings,
        handle: Handle,
        tenants: &Tenants,
        bodies: Budget,
        reporting: &Reporting,
    ) -> Result<Running, Box<(Error, Self)>> {
        match self.start_clients(settings, handle, tenants, bodies, reporting) {
            Ok((address, clients)) => {
                Ok(Running { address, drain: self.drain, clients, operators: self.server })
            }
            Err(error) => Err(Box::new((error, self))),
        }
    }

    fn start_clients(
        &self,
        settings: &Settings,
        handle: Handle,
        tenants: &Tenants,
        bodies: Budget,
        reporting: &Reporting,
    ) -> Result<(SocketAddr, Listening), Error> {
        let drain = Arc::clone(&self.drain);
        let front = Front::new(settings, handle.clone(), tenants, bodies, drain, reporting)?;
        let by_address = Arc::new(ConnectionsByAddress::new(settings)?);
        let failed = refused(&settings.listen, "front.listen");
        let (listener, address) = bind_tcp(settings.listen).map_err(&failed)?;
        let tls = self.tls.clone();
        let clients = client_server(settings, front, by_address, tls, listener).map_err(&failed)?;
        // Clients are served once.
        let tenants = tenants.clone();
        let records = OperatorRecords::new(reporting.audit.recorder());
        let _ = self.served.set(ServedClients { handle, tenants, records });
        Ok((address, Listening::start(clients)))
    }

    /// Closes the listener and its connections.
    pub async fn stop(self) {
        self.server.stop().await;
    }
}

fn refused(
    address: &dyn ToString,
    setting: &'static str,
) -> impl Fn(std::io::Error) -> Error + use<> {
    let address = address.to_string();
    move |source| Error::Listen { address: address.clone(), setting, source }
}

fn client_server(
    settings: &Settings,
    front: Front,
    by_address: Arc<ConnectionsByAddress>,
    tls: Option<Tls>,
    listener: TcpListener,
) -> std::io::Result<Server> {
    let workers = settings.worker_count();
    let connections_max = settings.connections_max;
    metrics::CONNECTIONS_MAX.set(connections_max.saturating_mul(workers) as i64);
    let head_secs = settings.head_timeout_secs;
    let limits = connection::ConnectionLimits {
        timeouts: Timeouts {
            first_byte: Duration::from_secs(settings.keep_alive_secs.max(head_secs)),
            head: Duration::from_secs(head_secs),
        },
        write_timeout_secs: settings.write_timeout_secs,
    };
    let keep_alive = match settings.keep_alive_secs {
        0 => KeepAlive::Disabled,
        secs => KeepAlive::Timeout(Duration::from_secs(secs)),
    };
    let server = Server::build()
        .workers(workers)
        .max_concurrent_connections(
            connections_max.saturating_add(connections_headroom(connections_max)),
        )
        .shutdown_timeout(SHUTDOWN_SECS_MAX)
        .disable_signals();
    let signal = server.graceful_shutdown_signal();
    let stopping = move || {
        let signal = signal.clone();
        async move { signal.notified().await }
    };
    let clients =
        ClientService { front, by_address, connections_max, limits, keep_alive, stopping };
    let server = match tls {
        None => server.listen("clients", listener, move || clients.for_worker(|tcp, _| tcp))?,
        Some(tls) => server.listen("clients", listener, move || {
            let tls = WorkerTls::new(&tls);
            clients.for_worker(move |tcp, peer| tls.wrap(tcp, peer))
        })?,
    };
    Ok(server.run())
}

/// Serves the connections of clients. `stopping` returns a future that is ready when the server stops.
#[derive(Clone)]
struct ClientService<N> {
    front: Front,
    by_address: Arc<ConnectionsByAddress>,
    connections_max: usize,
    limits: connection::ConnectionLimits,
    keep_alive: KeepAlive,
    stopping: N,
}

impl<N, F> ClientService<N>
where
    N: Fn() -> F + Clone + 'static,
    F: Future<Output = ()> + 'static,
{
    /// Passes every request to [`Front::answer`]. There are three paths: a routing table, extractors
    /// and boxed futures would cost more than the answer.
    fn for_worker<S, W>(
        &self,
        wrap: W,
    ) -> impl ServiceFactory<TcpStream, Config = (), Response = (), InitError = ()> + use<N, F, S, W>
    where
        S: Transport,
        W: Fn(TcpStream, Option<SocketAddr>) -> S + Clone,
    {
        let front = Rc::new(self.front.for_worker());
        // Sessions that this node takes over may be assigned to this worker.
        front.register_thread();
        let expecting = Rc::clone(&front);
        let clients = ClientConnections {
            places: Places::new(self.connections_max),
            by_address: Arc::clone(&self.by_address),
        };
        let http = HttpService::build()
            .keep_alive(self.keep_alive)
            // `Timed` has the times of heads.
            .client_request_timeout(Duration::ZERO)
            .client_disconnect_timeout(LINGER)
            // A client that closes its half counts as disconnected. Otherwise the server would
            // detect the disconnect of an SSE client only at its next write to the stream.
            .h1_allow_half_closed(false)
            .graceful_shutdown_signal(self.stopping.clone())
            .on_connect_ext(|connection: &Timed<S>, shared| {
                shared.insert(Rc::clone(connection.heads()));
            })
            .expect(fn_service(move |request: Request| ready(expecting.expect(request))))
            .h1(move |request: Request| {
                let front = Rc::clone(&front);
                let serving = Serving::of(&request);
                let may_trace = front.may_trace();
                // Boxed: an idle connection reserves the future's size twice.
                let answer = Box::pin(async move {
                    let response = front.answer(request).await;
                    response.map(|response| response.map_body(|_, body| Served::new(body, serving)))
                });
                Spanned::new(answer, may_trace)
            });
        connection::connection_service(http, wrap, self.limits, Some(clients))
    }
}

/// A server that runs on an arbiter.
#[derive(Debug)]
struct Listening {
    handle: ServerHandle,
    task: JoinHandle<()>,
}

impl Listening {
    /// Runs a server on the calling arbiter until it is stopped.
    fn start(server: Server) -> Self {
        let handle = server.handle();
        let task = actix_rt::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "listener failed; restart the node");
            }
        });
        Self { handle, task }
    }

    /// Accepts no new connection and waits for requests in flight. Returns whether they finished
    /// in time.
    async fn stop(mut self, grace: Duration) -> bool {
        let stopped = async {
            self.handle.stop(true).await;
            let _ = (&mut self.task).await;
        };
        let in_time = tokio::time::timeout(grace, stopped).await.is_ok();
        // A server processes no command while it waits, but dropping it closes every connection.
        self.task.abort();
        in_time
    }
}

/// Both servers, running. Dropping it stops neither.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    drain: Arc<Drain>,
    clients: Listening,
    operators: AdminServer,
}

impl Running {
    /// The address of the listener for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the listener for operators.
    pub fn admin_address(&self) -> &AdminAddress {
        self.operators.address()
    }

    /// Asks the client to close its connection in every response from now on, so that a balancer
    /// moves it to another node. Requests are still accepted. No operator can take this back.
    pub fn drain(&self) {
        self.drain.begin_stop();
    }

    /// Ready when no request is being answered, no stream is open, and no request has arrived
    /// for a moment: the balancer has moved all clients to other nodes, and [`Running::stop`]
    /// cuts off no response.
    pub async fn wait_until_unused(&self) {
        self.drain.over().await;
    }

    /// Closes the listeners, waits at most `grace` for responses in flight, then cuts off the
    /// rest. End the sessions first ([`Handle::stop`]): their streams are responses.
    pub async fn stop(self, grace: Duration) {
        self.drain();
        if !self.clients.stop(grace).await {
            tracing::warn!("responses were cut off at the end of the grace period");
        }
        self.operators.stop().await;
    }
}

//! The endpoints for operators and their machines: `/metrics`, `/healthz` and `/readyz`, which
//! are open to every client that reaches the port, and `/drain`, `/revocations` and `/v1/…`, which need
//! a credential, or a Unix socket if the settings have no credential. Plain HTTP.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use actix_http::header::{self, HeaderValue};
use actix_http::{ConnectionType, Method, Request, RequestHead, Response, StatusCode};
use actors::Handle;
use audit::Held;
use bytes::Bytes;
use telemetry::{METRICS_CONTENT_TYPE, Readiness, metrics_text};
use tenants::Tenants;
use tokio::sync::Semaphore;

use crate::admin_actions::{act, detached, drain_action, drain_or_undrain, revoke};
use crate::admin_api::{self, ApiAnswer, ApiRequest, Listed, Performed, Unreadable};
use crate::admin_audit::{self, About, Operator, OperatorRecords};
use crate::admin_credentials::{AdminCredentials, CredentialProblem, Role};
use crate::admin_host::AdminHosts;
use crate::admin_revocations::{self, Wanted};
use crate::body::Body;
use crate::drain::{Drain, TakenBack};

/// The reason why a draining node is not ready.
const DRAINING: &str = "draining";

const TEXT: &str = "text/plain; charset=utf-8";
pub(crate) const JSON: &str = "application/json";

const STARTING: &str = "the node is starting\n";

/// How long requests in flight may take at a node that is to drain, if the request names no time.
const GRACE: Duration = Duration::from_secs(10);

/// The interval at which a draining node checks whether it has new sessions.
const LOOK: Duration = Duration::from_secs(1);

/// Most requests to `/v1/…`, and as many to `/revocations`, that are performed at a time; a further one is answered 503. Each may ask all
/// nodes and search all sessions.
const PERFORMED_MAX: usize = 16;

/// How long a list may take; less than its connection.
const PERFORM: Duration = Duration::from_secs(9);

/// What the endpoints for operators read and change. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Operated {
    pub(crate) readiness: Readiness,
    pub(crate) served: Arc<OnceLock<ServedClients>>,
    pub(crate) drain: Arc<Drain>,
    pub(crate) access: Access,
    /// See [`PERFORMED_MAX`].
    performed: Arc<Semaphore>,
    /// The same of requests to `/revocations`: lists do not delay that a client is kept out.
    revoked: Arc<Semaphore>,
}

/// The sessions and the tenants; set when clients are served.
pub(crate) struct ServedClients {
    pub(crate) handle: Handle,
    pub(crate) tenants: Tenants,
    pub(crate) records: OperatorRecords,
}

/// Which clients of the listener may do something.
#[derive(Clone)]
pub(crate) struct Access {
    /// Without a credential in the settings, a Unix socket accepts every client: its permissions admit
    /// only the node's own user. A port then accepts none.
    pub(crate) credentials: AdminCredentials,
    /// Whether `/metrics` needs a credential.
    pub(crate) protect_metrics: bool,
    pub(crate) place: ListenedAt,
}

/// Where the listener listens.
#[derive(Clone)]
pub(crate) enum ListenedAt {
    /// At a Unix socket.
    Socket,
    /// At a TCP port, under these host names.
    Port(AdminHosts),
}

impl Operated {
    pub(crate) fn new(
        readiness: Readiness,
        served: Arc<OnceLock<ServedClients>>,
        drain: Arc<Drain>,
        access: Access,
    ) -> Self {
        let [performed, revoked] = [(); 2].map(|()| Arc::new(Semaphore::new(PERFORMED_MAX)));
        Self { readiness, served, drain, access, performed, revoked }
    }
}

/// Answers one request. Only a request to `/v1/…` or `/revocations` waits for something.
pub(crate) async fn answer(request: &Request, operated: &Operated) -> Response<Body> {
    let head = request.head();
    // A page in a browser may not use these endpoints under any host name.
    if head.headers.contains_key(header::ORIGIN) {
        return text(StatusCode::FORBIDDEN, TEXT, "not for pages\n");
    }
    if !names_allowed_host(head, &operated.access) {
        let why = "this host name is not allowed: use an IP address, or list the name in \
                   `admin.allowed_hosts`\n";
        return text(StatusCode::FORBIDDEN, TEXT, why);
    }
    match (&head.method, head.uri.path()) {
        (method @ (&Method::POST | &Method::DELETE), "/drain") => {
            let operator = match operated.admit(head, Role::Operate, drain_action(method)) {
                Ok(operator) => operator,
                Err(refused) => return refused.into_text(),
            };
            if operated.served.get().is_none() {
                return text(StatusCode::SERVICE_UNAVAILABLE, TEXT, STARTING);
            }
            let query = head.uri.query().unwrap_or_default().to_owned();
            let (operated, wanted) = (operated.clone(), (method.clone(), query));
            detached(|answering| drain_or_undrain(operated, operator, wanted, answering)).await
        }
        (_, "/drain") => not_allowed("POST, DELETE"),
        (_, path) if path.starts_with(admin_api::PREFIX) => api(head, operated).await,
        (&Method::GET | &Method::POST | &Method::DELETE, "/revocations") => {
            revocations(head, operated).await
        }
        (_, "/revocations") => not_allowed("GET, POST, DELETE"),
        (&Method::GET | &Method::HEAD, path) => read(head, path, operated),
        _ => not_allowed("GET, HEAD"),
    }
}

/// Answers a request to `/v1/…`.
async fn api(head: &RequestHead, operated: &Operated) -> Response<Body> {
    let query = head.uri.query().unwrap_or_default();
    let request = match ApiRequest::read(&head.method, head.uri.path(), query) {
        Ok(request) => request,
        Err(Unreadable::Method(methods)) => return not_allowed(methods),
        Err(Unreadable::Path) => {
            let why =
                "there are /v1/nodes, /v1/tenants, /v1/sessions, /v1/sessions/ID and /v1/accounts";
            return json(ApiAnswer::error(StatusCode::NOT_FOUND, why));
        }
        Err(Unreadable::Parameter(why)) => {
            return json(ApiAnswer::error(StatusCode::BAD_REQUEST, why));
        }
    };
    let operator = match operated.admit(head, request.role(), request.action()) {
        Ok(operator) => operator,
        Err(refused) => return refused.into_json(),
    };
    let Some(ServedClients { handle, tenants, records }) = operated.served.get() else {
        return json(ApiAnswer::error(StatusCode::SERVICE_UNAVAILABLE, STARTING.trim_end()));
    };
    let (action, object) = (request.action(), request.object());
    let Ok(performed) = Arc::clone(&operated.performed).try_acquire_owned() else {
        return operated.refuse_busy(&operator, action);
    };
    if request.role() != Role::Read {
        let operated = operated.clone();
        return detached(|answering| act(operated, operator, request, performed, answering)).await;
    }
    let listed = Listed { handle, overview: handle.overview(), tenants };
    let done = tokio::time::timeout(PERFORM, request.perform(listed)).await;
    let Performed { outcome, answer, .. } = done.unwrap_or_else(|_| Performed::late());
    let about = About { target: &object, ..About::default() };
    match records.read(&operator, action, about, outcome).await {
        Ok(()) => json(answer),
        Err(held) => unrecorded(held),
    }
}

fn unrecorded(held: Held) -> Response<Body> {
    json(ApiAnswer::error(StatusCode::SERVICE_UNAVAILABLE, held.to_string()))
}

pub(crate) fn json(ApiAnswer { status, body }: ApiAnswer) -> Response<Body> {
    text(status, JSON, format!("{body}\n"))
}

/// The answer to each further request of a connection, which costs little.
pub(crate) fn one_request_only() -> Response<Body> {
    text(StatusCode::BAD_REQUEST, TEXT, "a connection serves one request\n")
}

/// Answers a request to `/revocations`. The list names clients, so it needs the role `operate` as well.
async fn revocations(head: &RequestHead, operated: &Operated) -> Response<Body> {
    let action = match head.method {
        Method::POST => "revoke",
        Method::DELETE => "lift revocation",
        _ => "list revocations",
    };
    let operator = match operated.admit(head, Role::Operate, action) {
        Ok(operator) => operator,
        Err(refused) => return refused.into_json(),
    };
    let Some(ServedClients { handle, tenants, records }) = operated.served.get() else {
        return json(ApiAnswer::error(StatusCode::SERVICE_UNAVAILABLE, STARTING.trim_end()));
    };
    let wanted = match Wanted::read(head.uri.query().unwrap_or_default()) {
        Ok(wanted) => wanted,
        Err(why) => {
            let credential = Some(&*operator.credential);
            admin_audit::record_refusal(Some(records), credential, action, "malformed");
            return json(ApiAnswer::error(StatusCode::BAD_REQUEST, why));
        }
    };
    let Ok(revoked) = Arc::clone(&operated.revoked).try_acquire_owned() else {
        return operated.refuse_busy(&operator, action);
    };
    if head.method != Method::GET {
        let (operated, order) = (operated.clone(), (head.method.clone(), action));
        return detached(|answering| async move {
            revoke(operated, operator, order, wanted, answering).await;
            drop(revoked);
        })
        .await;
    }
    let ((status, body), _) =
        admin_revocations::answer(&head.method, &wanted, handle, tenants).await;
    let object = wanted.tenant.as_deref().unwrap_or("all tenants");
    let about = About { target: object, ..About::default() };
    match records.read(&operator, action, about, status.as_str()).await {
        Ok(()) => text(status, JSON, format!("{body}\n")),
        Err(held) => unrecorded(held),
    }
}

fn read(head: &RequestHead, path: &str, operated: &Operated) -> Response<Body> {
    match path {
        "/metrics" if operated.access.protect_metrics => {
            match operated.admit(head, Role::Read, "read metrics") {
                Ok(_) => text(StatusCode::OK, METRICS_CONTENT_TYPE, metrics_text()),
                Err(refused) => refused.into_text(),
            }
        }
        "/metrics" => text(StatusCode::OK, METRICS_CONTENT_TYPE, metrics_text()),
        // Liveness only: readiness is reported by `/readyz`.
        "/healthz" => text(StatusCode::OK, TEXT, "alive\n"),
        "/readyz" => ready(&operated.readiness),
        _ => text(
            StatusCode::NOT_FOUND,
            TEXT,
            "there are /metrics, /healthz, /readyz, /drain, /revocations, /v1/\n",
        ),
    }
}

fn not_allowed(methods: &'static str) -> Response<Body> {
    let why = format!("only {methods} is taken here\n");
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, TEXT, why);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    // The body of the request is not read.
    response.head_mut().set_connection_type(ConnectionType::Close);
    response
}

/// Is the host of the request one for which this listener answers? A request may name its host in
/// its first line, too.
fn names_allowed_host(head: &RequestHead, access: &Access) -> bool {
    let ListenedAt::Port(hosts) = &access.place else { return true };
    let in_line = head.uri.authority().map(|authority| authority.as_str());
    let in_header = head.headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    in_line.into_iter().chain(in_header).all(|host| hosts.allows(host))
}

/// A request that is refused for its credential.
struct Refused {
    status: StatusCode,
    why: String,
}

impl Refused {
    fn into_text(self) -> Response<Body> {
        let response = text(self.status, TEXT, format!("{}\n", self.why));
        self.challenging(response)
    }

    fn into_json(self) -> Response<Body> {
        let response = json(ApiAnswer::error(self.status, self.why.clone()));
        self.challenging(response)
    }

    fn challenging(&self, mut response: Response<Body>) -> Response<Body> {
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        // The body of the request is not read.
        response.head_mut().set_connection_type(ConnectionType::Close);
        response
    }
}

impl Operated {
    /// The answer to an operator whose request finds no place among those that are performed.
    fn refuse_busy(&self, operator: &Operator, action: &'static str) -> Response<Body> {
        let records = self.served.get().map(|served| &served.records);
        admin_audit::record_refusal(records, Some(&operator.credential), action, "busy");
        let why = "the node performs too many requests of operators already; ask again";
        json(ApiAnswer::error(StatusCode::SERVICE_UNAVAILABLE, why))
    }

    /// The operator who sends a request, if the credential has the role that the request needs.
    fn admit(
        &self,
        head: &RequestHead,
        needed: Role,
        action: &'static str,
    ) -> Result<Operator, Refused> {
        let Access { credentials, place, .. } = &self.access;
        let records = self.served.get().map(|served| &served.records);
        let refused = |status, why: String| Err(Refused { status, why });
        if credentials.is_empty() {
            return match place {
                ListenedAt::Socket => Ok(Operator::of_socket()),
                ListenedAt::Port(_) => {
                    admin_audit::record_refusal(records, None, action, "off");
                    refused(
                        StatusCode::FORBIDDEN,
                        "this is off until there is a credential: make one with `roundhouse admin-key`, or \
                         set `admin.token_file` to a file that holds a token, and send it as \
                         `Authorization: Bearer <token>`"
                            .into(),
                    )
                }
            };
        }
        let found = match bearer(head) {
            Some(token) => credentials.find(token, SystemTime::now()),
            None => Err(CredentialProblem::Unknown),
        };
        match found {
            Ok(credential) if credential.role >= needed => {
                Ok(Operator { credential: credential.name })
            }
            Ok(credential) => {
                admin_audit::record_refusal(records, Some(&credential.name), action, "role");
                let (name, role) = (credential.name, credential.role);
                refused(
                    StatusCode::FORBIDDEN,
                    format!(
                        "the credential `{name}` has the role `{role}`, and this needs `{needed}`; use \
                         another one"
                    ),
                )
            }
            Err(CredentialProblem::Expired(name)) => {
                admin_audit::record_refusal(records, Some(&name), action, "expired");
                let why = format!(
                    "the credential `{name}` has ended; make another one with `roundhouse admin-key`"
                );
                refused(StatusCode::UNAUTHORIZED, why)
            }
            Err(CredentialProblem::Unknown) => {
                admin_audit::record_refusal(records, None, action, "no valid token");
                refused(
                    StatusCode::UNAUTHORIZED,
                    "send the token of a credential in `admin.credentials`, or of `admin.token_file`, as \
                     `Authorization: Bearer <token>`"
                        .into(),
                )
            }
        }
    }
}

/// The token of a request. Two of them are none: a proxy could mean the other one.
fn bearer(head: &RequestHead) -> Option<&str> {
    let mut all = head.headers.get_all(header::AUTHORIZATION);
    let (Some(shown), None) = (all.next(), all.next()) else { return None };
    let (scheme, token) = shown.to_str().ok()?.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case("Bearer ").then_some(token)
}

/// Starts a drain; the process goes on. `?secs=` sets how long requests in flight may take. A
/// repeated request changes nothing.
pub(crate) fn drain(operated: &Operated, handle: &Handle, query: &str) -> Response<Body> {
    let secs = query.split('&').find_map(|pair| pair.strip_prefix("secs="));
    let grace = match secs.map(str::parse) {
        None => GRACE,
        Some(Ok(secs)) => Duration::from_secs(secs),
        Some(Err(_)) => {
            return text(StatusCode::BAD_REQUEST, TEXT, "write ?secs= and a number of seconds\n");
        }
    };
    operated.drain.begin_by_operator(|| {
        operated.readiness.hold(DRAINING);
        let handle = handle.clone();
        // Before the answer: then no client gets a new session that ends at once.
        handle.begin_drain();
        let draining = actix_rt::spawn(async move {
            // Sessions that arrive until the balancer has noticed are released as well.
            loop {
                handle.drain(grace).await;
                while handle.sessions() == 0 {
                    tokio::time::sleep(LOOK).await;
                }
            }
        });
        draining.abort_handle()
    });
    text(StatusCode::ACCEPTED, TEXT, "draining\n")
}

/// Takes back a drain that an operator began. A repeated request changes nothing.
pub(crate) fn take_drain_back(operated: &Operated, handle: &Handle) -> Response<Body> {
    let taken_back = operated.drain.take_back(|| {
        handle.cancel_drain();
        operated.readiness.clear(DRAINING);
    });
    match taken_back {
        TakenBack::Now => text(StatusCode::OK, TEXT, "drain taken back\n"),
        TakenBack::NotDraining => text(StatusCode::OK, TEXT, "not draining\n"),
        TakenBack::Stopping => {
            let why = "this drain cannot be taken back: the process was told to stop and is about \
                       to end; start it again\n";
            text(StatusCode::CONFLICT, TEXT, why)
        }
    }
}

fn ready(readiness: &Readiness) -> Response<Body> {
    let (reasons, remarks) = (readiness.reasons(), readiness.remarks());
    let more: String = remarks.iter().map(|remark| format!("remark: {remark}\n")).collect();
    if reasons.is_empty() {
        return text(StatusCode::OK, TEXT, format!("ready\n{more}"));
    }
    let reasons = format!("not ready: {}\n{more}", reasons.join(", "));
    text(StatusCode::SERVICE_UNAVAILABLE, TEXT, reasons)
}

pub(crate) fn text(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::with_body(status, Body::whole(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

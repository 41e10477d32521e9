//! One request, from its head to its response: the checks that every transport shares.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use actix_http::{ConnectionType, Method, Payload, Request, RequestHead, Response};
use actors::{Caller, Handle};
use bytes::Bytes;
use protocol::SessionId;
use tenants::{Principal, Tenant, Tenants};

use crate::body::{Body, Bound, Collecting, collect};
use crate::drain::{Drain, Present};
use crate::heads::Heads;
use crate::origin::{Gate, public_path};
use crate::refusal::Refused;
use crate::route::{self, Endpoint};
use crate::{Error, Settings, cors, http_sse, metrics, streamable_http};

/// What every request needs. Each worker has one.
#[derive(Clone)]
pub(crate) struct Front {
    pub(crate) handle: Handle,
    /// Who asks at an open endpoint: one for all of a worker's requests.
    anonymous: Principal,
    pub(crate) public_path: Arc<str>,
    tenants: Tenants,
    gate: Arc<Gate>,
    pub(crate) drain: Arc<Drain>,
    header_bytes_max: usize,
    collecting: Collecting,
}

/// One request that passed the shared checks.
pub(crate) struct Asked<'a> {
    pub(crate) tenant: &'a Arc<Tenant>,
    pub(crate) principal: Principal,
    pub(crate) method: &'a Method,
    pub(crate) query: &'a str,
    pub(crate) heads: Heads<'a>,
    /// The body, until it is collected.
    payload: Payload,
}

impl Asked<'_> {
    /// This caller, with a session.
    pub(crate) fn caller(&self, session: SessionId) -> Caller {
        Caller { tenant: Arc::clone(self.tenant), principal: self.principal.clone(), session }
    }

    fn take_payload(&mut self) -> Payload {
        std::mem::replace(&mut self.payload, Payload::None)
    }
}

impl Front {
    /// What serves under these settings.
    pub(crate) fn new(
        settings: &Settings,
        handle: Handle,
        tenants: Tenants,
        drain: Arc<Drain>,
    ) -> Result<Self, Error> {
        Ok(Self {
            handle,
            anonymous: Principal::anonymous(),
            tenants,
            drain,
            public_path: public_path(settings)?.into(),
            gate: Arc::new(Gate::new(settings)?),
            header_bytes_max: settings.header_bytes_max,
            collecting: Collecting {
                of_session: of_session(settings),
                of_none: of_none(settings),
                wait: Duration::from_secs(settings.body_timeout_secs),
                room: Arc::new(AtomicUsize::new(settings.bodies_bytes_max)),
            },
        })
    }

    /// For another worker, which shares nothing with this one that every request changes.
    pub(crate) fn for_worker(&self) -> Self {
        Self { anonymous: Principal::anonymous(), ..self.clone() }
    }

    /// Answers one request.
    pub(crate) async fn answer(&self, mut request: Request) -> Result<Response<Body>, Infallible> {
        let _present = Present::new(&self.drain);
        let payload = request.take_payload();
        let head = request.head();
        let found = route::find(head.uri.path());
        let tenant = found.and_then(|(tenant, _)| self.tenants.find(tenant));
        let mut origin = None;
        let mut response = match self.admit(head, tenant) {
            Err(refused) => refused.unread(payload).into_response(),
            Ok(heads) => {
                origin = heads.origin;
                match (found, tenant) {
                    (Some((_, endpoint)), Some(tenant)) => {
                        let method = &head.method;
                        let query = head.uri.query().unwrap_or_default();
                        let principal = self.anonymous.clone();
                        let mut asked = Asked { tenant, principal, method, query, heads, payload };
                        self.serve(endpoint, &mut asked).await
                    }
                    _ => Refused::unknown_path().unread(payload).into_response(),
                }
            }
        };
        if let Some(origin) = origin {
            cors::expose(response.headers_mut(), origin);
        }
        // An answer to a POST is kept by no cache, so most need no word for caches.
        if head.method != Method::POST || !response.status().is_success() || origin.is_some() {
            cors::vary(response.headers_mut());
        }
        if self.drain.has_begun() {
            response.head_mut().set_connection_type(ConnectionType::Close);
        }
        let endpoint = found.map(|(_, endpoint)| endpoint);
        metrics::answered(endpoint, &head.method, response.status());
        // No path and no header: they hold session ids, and may hold anything.
        tracing::debug!(method = %head.method, ?endpoint, status = response.status().as_u16());
        Ok(response)
    }

    /// Checks where a request comes from (SEC-01: on every method and path). A page that is
    /// admitted may read whatever comes of its request.
    fn admit<'a>(
        &self,
        head: &'a RequestHead,
        tenant: Option<&Arc<Tenant>>,
    ) -> Result<Heads<'a>, Refused> {
        let heads = Heads::read(&head.headers, self.header_bytes_max)?;
        // A request may name its host in its first line too; then that is the one it means.
        let named = head.uri.authority().map(|authority| authority.as_str());
        if !self.gate.allows_host(heads.host)
            || named.is_some_and(|host| !self.gate.allows_host(Some(host)))
        {
            return Err(Refused::host());
        }
        let tenants_own = tenant.map_or(&[][..], |tenant| &tenant.allowed_origins);
        match heads.origin {
            Some(origin) if !self.gate.allows_origin(origin, tenants_own) => Err(Refused::origin()),
            _ => Ok(heads),
        }
    }

    async fn serve(&self, endpoint: Endpoint, asked: &mut Asked<'_>) -> Response<Body> {
        if *asked.method == Method::OPTIONS {
            return cors::preflight(endpoint.methods(), asked.heads.preflight_headers);
        }
        let served = match endpoint {
            Endpoint::Mcp => streamable_http::answer(self, asked).await,
            Endpoint::Sse => http_sse::open(self, asked).await,
            Endpoint::Messages => http_sse::post(self, asked).await,
        };
        // What was not read by now never will be.
        served.unwrap_or_else(|refused| refused.unread(asked.take_payload()).into_response())
    }

    /// Collects the body of a request for a session, bounded in size and time. One that names
    /// it in its headers waits for room a moment: a refusal would end some clients.
    pub(crate) async fn collect(&self, asked: &mut Asked<'_>) -> Result<Bytes, Refused> {
        self.collect_within(asked, self.collecting.of_session).await
    }

    /// Collects the body of a POST that names no session. Only `initialize` is answered there,
    /// so it is bounded by less.
    pub(crate) async fn collect_initialize(&self, asked: &mut Asked<'_>) -> Result<Bytes, Refused> {
        self.collect_within(asked, self.collecting.of_none).await
    }

    async fn collect_within(&self, asked: &mut Asked<'_>, bound: Bound) -> Result<Bytes, Refused> {
        let announced = asked.heads.content_length;
        let patient = asked.heads.session.is_some();
        let body = collect(&mut asked.payload, announced, &self.collecting, bound, patient).await?;
        asked.payload = Payload::None;
        Ok(body)
    }
}

fn of_session(settings: &Settings) -> Bound {
    Bound { bytes_max: settings.body_bytes_max, setting: "front.body_bytes_max" }
}

fn of_none(settings: &Settings) -> Bound {
    let bytes_max = settings.initialize_body_bytes_max;
    if bytes_max < settings.body_bytes_max {
        Bound { bytes_max, setting: "front.initialize_body_bytes_max" }
    } else {
        of_session(settings)
    }
}

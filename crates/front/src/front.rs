//! One request, from its head to its response: the checks that every transport shares.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix_http::{ConnectionType, Method, Payload, Request, Response};
use actors::{Handle, Visit};
use bytes::Bytes;
use protocol::SessionId;
use tenants::{Principal, Tenant, Tenants};

use crate::body::{Body, collect};
use crate::heads::Heads;
use crate::origin::{Gate, public_path};
use crate::refusal::Refused;
use crate::route::{self, Endpoint};
use crate::{Error, Settings, cors, http_sse, metrics, streamable_http};

/// What every request needs. Each worker has one.
#[derive(Clone)]
pub(crate) struct Front {
    pub(crate) handle: Handle,
    pub(crate) public_path: Arc<str>,
    tenants: Tenants,
    gate: Arc<Gate>,
    draining: Arc<AtomicBool>,
    body_bytes_max: usize,
    header_bytes_max: usize,
    body_timeout: Duration,
}

/// One request that passed the shared checks.
pub(crate) struct Asked<'a> {
    pub(crate) tenant: &'a Arc<Tenant>,
    pub(crate) principal: Principal,
    pub(crate) method: &'a Method,
    pub(crate) query: &'a str,
    pub(crate) heads: Heads<'a>,
    pub(crate) payload: Payload,
}

impl Asked<'_> {
    /// A visit of this caller to a session.
    pub(crate) fn visit(&self, session: SessionId) -> Visit {
        Visit { tenant: Arc::clone(self.tenant), principal: self.principal.clone(), session }
    }
}

impl Front {
    /// What serves under these settings.
    pub(crate) fn new(
        settings: &Settings,
        handle: Handle,
        tenants: Tenants,
        draining: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        Ok(Self {
            handle,
            tenants,
            draining,
            public_path: public_path(settings)?.into(),
            gate: Arc::new(Gate::new(settings)?),
            body_bytes_max: settings.body_bytes_max,
            header_bytes_max: settings.header_bytes_max,
            body_timeout: Duration::from_secs(settings.body_timeout_secs),
        })
    }

    /// Answers one request.
    pub(crate) async fn answer(&self, mut request: Request) -> Result<Response<Body>, Infallible> {
        let payload = request.take_payload();
        let head = request.head();
        let found = route::find(head.uri.path());
        let mut response = match Heads::read(&head.headers, self.header_bytes_max) {
            Err(fault) => Refused::from(fault).unread(payload).into_response(),
            Ok(heads) => self.admit(&request, found, heads, payload).await,
        };
        if self.draining.load(Ordering::Relaxed) {
            response.head_mut().set_connection_type(ConnectionType::Close);
        }
        let endpoint = found.map(|(_, endpoint)| endpoint);
        metrics::answered(endpoint, &head.method, response.status());
        // No path and no header: they hold session ids, and may hold anything.
        tracing::debug!(method = %head.method, ?endpoint, status = response.status().as_u16());
        Ok(response)
    }

    /// Checks where a request comes from (SEC-01: on every method and path), and lets a page
    /// that may be here read whatever comes of it.
    async fn admit(
        &self,
        request: &Request,
        found: Option<(&str, Endpoint)>,
        heads: Heads<'_>,
        payload: Payload,
    ) -> Response<Body> {
        let head = request.head();
        let tenant = found.and_then(|(tenant, _)| self.tenants.find(tenant));
        let origin = heads.origin;
        let tenants_own = tenant.map_or(&[][..], |tenant| &tenant.allowed_origins);
        // A request may name its host in its first line too; then that is the one it means.
        let named = head.uri.authority().map(|authority| authority.as_str());
        let mut response = if !self.gate.allows_host(heads.host)
            || named.is_some_and(|host| !self.gate.allows_host(Some(host)))
        {
            Refused::host().unread(payload).into_response()
        } else if origin.is_some_and(|origin| !self.gate.allows_origin(origin, tenants_own)) {
            Refused::origin().unread(payload).into_response()
        } else {
            let asked = |tenant| Asked {
                tenant,
                principal: Principal::anonymous(),
                method: &head.method,
                query: head.uri.query().unwrap_or_default(),
                heads,
                payload,
            };
            let mut response = match (found, tenant) {
                (Some((_, endpoint)), Some(tenant)) => self.serve(endpoint, asked(tenant)).await,
                _ => Refused::unknown_path().into_response(),
            };
            if let Some(origin) = origin {
                cors::expose(response.headers_mut(), origin);
            }
            response
        };
        // An answer to a POST is kept by no cache, so most need no word for caches.
        if origin.is_some() || head.method != Method::POST {
            cors::vary(response.headers_mut());
        }
        response
    }

    async fn serve(&self, endpoint: Endpoint, asked: Asked<'_>) -> Response<Body> {
        if *asked.method == Method::OPTIONS {
            return cors::preflight(endpoint.methods(), asked.heads.preflight_headers);
        }
        let served = match endpoint {
            Endpoint::Mcp => streamable_http::answer(self, asked).await,
            Endpoint::Sse => http_sse::open(self, asked).await,
            Endpoint::Messages => http_sse::post(self, asked).await,
        };
        served.unwrap_or_else(Refused::into_response)
    }

    /// Collects a request's body, bounded in size and time.
    pub(crate) async fn collect(&self, asked: &mut Asked<'_>) -> Result<Bytes, Refused> {
        let payload = std::mem::replace(&mut asked.payload, Payload::None);
        let announced = asked.heads.content_length;
        Ok(collect(payload, announced, self.body_bytes_max, self.body_timeout).await?)
    }
}

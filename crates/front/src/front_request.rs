//! One request that passed the shared checks, and the service that every transport uses for it.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use actix_http::{Method, Payload};
use actors::{Caller, Handle};
use bytes::Bytes;
use protocol::SessionId;
use tenants::{Principal, Tenant};

use crate::body::{Bound, Collecting, collect};
use crate::drain::Drain;
use crate::heads::Heads;
use crate::origin::public_path;
use crate::refusal::Refused;
use crate::{Error, Settings};

/// One request that passed the shared checks.
pub(crate) struct FrontRequest<'a> {
    pub(crate) tenant: &'a Arc<Tenant>,
    pub(crate) principal: Principal,
    pub(crate) method: &'a Method,
    pub(crate) query: &'a str,
    pub(crate) heads: Heads<'a>,
    /// The body, until it is collected.
    payload: Payload,
}

impl<'a> FrontRequest<'a> {
    /// A request whose body is not collected.
    pub(crate) fn new(
        tenant: &'a Arc<Tenant>,
        principal: Principal,
        method: &'a Method,
        query: &'a str,
        heads: Heads<'a>,
        payload: Payload,
    ) -> Self {
        Self { tenant, principal, method, query, heads, payload }
    }

    /// The caller of this request, for this session.
    pub(crate) fn caller(&self, session: SessionId) -> Caller {
        Caller { tenant: Arc::clone(self.tenant), principal: self.principal.clone(), session }
    }

    /// Takes the body if it was not collected.
    pub(crate) fn take_payload(&mut self) -> Payload {
        std::mem::replace(&mut self.payload, Payload::None)
    }
}

/// The shared state with which the transports serve requests.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) handle: Handle,
    pub(crate) public_path: Arc<str>,
    pub(crate) drain: Arc<Drain>,
    collecting: Collecting,
}

impl Service {
    /// The service under these settings.
    pub(crate) fn new(
        settings: &Settings,
        handle: Handle,
        drain: Arc<Drain>,
    ) -> Result<Self, Error> {
        Ok(Self {
            handle,
            drain,
            public_path: public_path(settings)?.into(),
            collecting: Collecting {
                of_session: session_body_bound(settings),
                of_initialize: initialize_body_bound(settings),
                wait: Duration::from_secs(settings.body_timeout_secs),
                bytes_left: Arc::new(AtomicUsize::new(settings.bodies_bytes_max)),
            },
        })
    }

    /// Collects the body of a request for a session, bounded in size and time. A body whose
    /// request names the session in its headers waits a moment for memory: a refusal would make
    /// some clients end the session.
    pub(crate) async fn collect(&self, request: &mut FrontRequest<'_>) -> Result<Bytes, Refused> {
        self.collect_within(request, self.collecting.of_session).await
    }

    /// Collects the body of a POST that names no session. Only `initialize` is accepted there, so
    /// the limit is lower.
    pub(crate) async fn collect_initialize(
        &self,
        request: &mut FrontRequest<'_>,
    ) -> Result<Bytes, Refused> {
        self.collect_within(request, self.collecting.of_initialize).await
    }

    async fn collect_within(
        &self,
        request: &mut FrontRequest<'_>,
        bound: Bound,
    ) -> Result<Bytes, Refused> {
        let announced = request.heads.content_length;
        let waits_for_memory = request.heads.session.is_some();
        let body =
            collect(&mut request.payload, announced, &self.collecting, bound, waits_for_memory)
                .await?;
        request.payload = Payload::None;
        Ok(body)
    }
}

fn session_body_bound(settings: &Settings) -> Bound {
    Bound { bytes_max: settings.body_bytes_max, setting: "front.body_bytes_max" }
}

fn initialize_body_bound(settings: &Settings) -> Bound {
    let bytes_max = settings.initialize_body_bytes_max;
    if bytes_max < settings.body_bytes_max {
        Bound { bytes_max, setting: "front.initialize_body_bytes_max" }
    } else {
        session_body_bound(settings)
    }
}

//! One request that passed the shared checks, and the service that every transport uses for it.

use std::sync::Arc;
use std::time::Duration;

use actix_http::{Method, Payload, RequestHead};
use actors::{Caller, Handle, ReplyStream, RevocationsOfThread};
use audit::Ticket;
use bytes::Bytes;
use fairness::compute_for_bytes;
use protocol::{Body as Posted, Rejection, SessionId, UpstreamTokens};
use tenants::{Scopes, Tenant, Tenants};
use tokio::time::timeout;

use crate::audited::Dispatched;
use crate::authentication::{Credential, Unauthenticated};
use crate::challenge;
use crate::client_address::AddressKey;
use crate::collecting::{Bound, Collecting};
use crate::drain::Drain;
use crate::exchange::Exchange;
use crate::head_timeout::HeadProgress;
use crate::heads::Heads;
use crate::held_dispatch::HeldDispatch;
use crate::lapse::{Lapse, Lapses};
use crate::limits::{Limited, Limits};
use crate::permissions::{Grant, NotPermitted};
use crate::refusal::Refused;
use crate::resource::PublicUrls;
use crate::route::{self, Endpoint};
use crate::session_rate::SessionRate;
use crate::stream_spans::StreamSpans;
use crate::{Error, Settings};

/// How long an exchange may take for what is dispatched without its token too.
const NOT_NEEDED_WITHIN: Duration = Duration::from_secs(1);

/// One request that passed the shared checks.
pub(crate) struct FrontRequest<'a> {
    pub(crate) tenant: &'a Arc<Tenant>,
    pub(crate) credential: Credential,
    pub(crate) method: &'a Method,
    pub(crate) query: &'a str,
    /// Whether the path has no tenant, since the host names it.
    pub(crate) is_at_host: bool,
    pub(crate) heads: Heads<'a>,
    /// The whole head, for what most requests do not need.
    pub(crate) head: &'a RequestHead,
    /// What is reported of the request at its end.
    pub(crate) exchange: &'a mut Exchange,
    /// The tokens for upstream servers, once the client's was exchanged.
    tokens: Option<UpstreamTokens>,
    /// The body, until it is collected.
    payload: Payload,
    connection: Option<&'a HeadProgress>,
}

impl<'a> FrontRequest<'a> {
    /// A request whose body is not collected.
    pub(crate) fn new(
        tenant: &'a Arc<Tenant>,
        credential: Credential,
        head: &'a RequestHead,
        heads: Heads<'a>,
        payload: Payload,
        connection: Option<&'a HeadProgress>,
        exchange: &'a mut Exchange,
    ) -> Self {
        exchange.of_principal(&credential.principal);
        Self {
            tenant,
            credential,
            method: &head.method,
            query: head.uri.query().unwrap_or_default(),
            is_at_host: route::find_at_host(head.uri.path()).is_some(),
            heads,
            head,
            exchange,
            tokens: None,
            payload,
            connection,
        }
    }

    /// Parses the body. A long one is scanned on another thread, so that it delays the calls of other
    /// tenants little.
    pub(crate) async fn parse(&self, raw: Bytes) -> Result<Posted, Rejection> {
        let bytes = raw.len();
        let parse = move || protocol::parse(raw, &protocol::Limits::default());
        compute_for_bytes(&self.tenant.name, bytes, parse).await
    }

    /// The caller of this request, for this session.
    pub(crate) fn caller(&self, session: SessionId) -> Caller {
        let principal = self.credential.principal.clone();
        Caller { tenant: Arc::clone(self.tenant), principal, session, tokens: self.tokens.clone() }
    }

    /// The tokens for upstream servers, once the client's was exchanged.
    pub(crate) fn tokens(&self) -> Option<UpstreamTokens> {
        self.tokens.clone()
    }

    /// Whether the request asks for a new session.
    pub(crate) fn begins_session(&self, endpoint: Endpoint) -> bool {
        match endpoint {
            Endpoint::Mcp => *self.method == Method::POST && self.heads.session.is_none(),
            Endpoint::Sse => true,
            Endpoint::Messages => false,
        }
    }

    /// Records what is about to be dispatched, and waits until that is written. It counts as dispatched with
    /// [`FrontRequest::set_dispatched`]. Boxed: with the audit log off, no connection reserves memory for it.
    pub(crate) async fn record(&mut self, dispatched: Dispatched<'_>) -> Result<(), Refused> {
        let Some(audited) = self.exchange.audited() else { return Ok(()) };
        let trace = self.heads.traceparent;
        let recorded = Box::pin(audited.record(self.tenant, dispatched, trace)).await;
        recorded.map_err(Refused::unrecorded)
    }

    /// Notes that what was recorded is dispatched.
    pub(crate) fn set_dispatched(&mut self) {
        if let Some(audited) = self.exchange.audited() {
            audited.set_dispatched();
        }
    }

    /// Records what is about to be dispatched: give the ticket to [`FrontRequest::dispatch`].
    pub(crate) async fn admit(
        &mut self,
        dispatched: Dispatched<'_>,
    ) -> Result<Option<Ticket>, Refused> {
        let Some(audited) = self.exchange.audited() else { return Ok(None) };
        let trace = self.heads.traceparent;
        let admitted = audited.admit_in_time(self.tenant, dispatched, trace).await;
        admitted.map_err(Refused::unrecorded)
    }

    /// Sends a message when its record is written.
    pub(crate) async fn dispatch(
        &mut self,
        ticket: Option<Ticket>,
        send: impl FnOnce() -> ReplyStream + 'static,
    ) -> Result<ReplyStream, Refused> {
        match (self.exchange.audited(), ticket) {
            (None, _) => Ok(send()),
            (Some(audited), None) => {
                audited.set_dispatched();
                Ok(send())
            }
            (Some(audited), Some(ticket)) => {
                HeldDispatch::new(audited, ticket, send).await.map_err(Refused::unrecorded)
            }
        }
    }

    /// A session of the tenant accepted the request, or was created by it.
    pub(crate) fn accepted(&self) {
        if let Some(connection) = self.connection {
            connection.set_holder(&self.tenant.name);
        }
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
    pub(crate) drain: Arc<Drain>,
    pub(crate) lapses: Lapses,
    revocations: RevocationsOfThread,
    pub(crate) urls: Arc<PublicUrls>,
    /// The limits of tenants in the whole cluster.
    pub(crate) limits: Limits,
    /// The streams of HTTP+SSE at this node.
    pub(crate) stream_spans: StreamSpans,
    collecting: Collecting,
    rate: Arc<SessionRate>,
}

impl Service {
    /// The service under these settings.
    pub(crate) fn new(
        settings: &Settings,
        handle: Handle,
        tenants: &Tenants,
        drain: Arc<Drain>,
        collecting: Collecting,
    ) -> Result<Self, Error> {
        let (lapses, revocations) = (
            Lapses::new(tenants, handle.revocations()),
            RevocationsOfThread::new(handle.revocations()),
        );
        Ok(Self {
            limits: Limits::new(handle.limits(), settings.worker_count()),
            handle,
            stream_spans: StreamSpans::default(),
            drain,
            lapses,
            revocations,
            urls: Arc::new(PublicUrls::new(settings)?),
            collecting,
            rate: Arc::new(SessionRate::new(settings)?),
        })
    }

    /// The same service for another worker.
    pub(crate) fn for_worker(&self) -> Self {
        Self { lapses: self.lapses.for_worker(), ..self.clone() }
    }

    /// For how long and with what a stream of the request goes on: a future that resolves when the
    /// credential does not count any more, and what the client may see.
    pub(crate) fn validity(&self, request: &FrontRequest<'_>) -> (Lapse, Option<Box<Grant>>) {
        let credential = &request.credential;
        (credential.lapse(&self.lapses, request.tenant), credential.grant.clone())
    }

    /// Ends a session that was opened just now, if its client was revoked meanwhile: opening may wait, and
    /// what ends the sessions of revoked clients may have looked before.
    pub(crate) fn check_opened(
        &self,
        request: &FrontRequest<'_>,
        endpoint: Endpoint,
        session: &SessionId,
    ) -> Result<(), Refused> {
        if !request.credential.is_revoked(request.tenant, &self.revocations) {
            return Ok(());
        }
        // The session ends whether or not the reply is read.
        drop(self.handle.delete(&request.caller(session.clone())));
        let host = route::host_of_tenant(request.head);
        let metadata = self.urls.metadata_url(request.tenant, endpoint, host.as_deref());
        let client = request.credential.principal.clone();
        Err(challenge::refuse(&Unauthenticated::Revoked(client), request.tenant, metadata))
    }

    /// The body without the messages that the client may not send. `raw` is the body as it arrived.
    pub(crate) fn permitted(
        &self,
        request: &mut FrontRequest<'_>,
        body: Posted,
        raw: &Bytes,
    ) -> Result<Posted, NotPermitted> {
        let judged = match &request.credential.grant {
            Some(grant) => grant.judge(body),
            None => Ok(body),
        };
        if let Some(audited) = request.exchange.audited() {
            audited.judged(&judged, raw);
        }
        judged
    }

    /// The same where a status has to say that the client may not send the message.
    pub(crate) fn permitted_or_refused(
        &self,
        request: &mut FrontRequest<'_>,
        endpoint: Endpoint,
        body: Posted,
        raw: &Bytes,
    ) -> Result<Posted, Refused> {
        self.permitted(request, body, raw).map_err(|why| match why {
            NotPermitted::Needs(scopes, id) => self.step_up(request, endpoint, &scopes).of(id),
            NotPermitted::Refused(rejection) => Refused::not_permitted(rejection),
        })
    }

    /// Takes the tokens that the messages of the body need: see [`Limits::admit`].
    pub(crate) async fn take_tokens(
        &self,
        request: &mut FrontRequest<'_>,
        body: &mut Posted,
    ) -> Result<(), Limited> {
        self.limits.admit(request.tenant, &request.credential, body, request.exchange).await
    }

    /// Records what is about to be dispatched, and gets the tokens that it needs: give the ticket to
    /// [`FrontRequest::dispatch`]. Without a request the session has tokens of an earlier one.
    pub(crate) async fn ready(
        &self,
        request: &mut FrontRequest<'_>,
        dispatched: Dispatched<'_>,
        has_request: bool,
    ) -> Result<Option<Ticket>, Refused> {
        if !request.tenant.exchanges_tokens {
            return request.admit(dispatched).await;
        }
        request.record(dispatched).await?;
        if has_request {
            Box::pin(self.exchange(request)).await?;
        } else {
            self.exchange_for_later(request).await;
        }
        Ok(None)
    }

    /// Exchanges the client's token for what its session sends without a request, if that takes no long time.
    pub(crate) async fn exchange_for_later(&self, request: &mut FrontRequest<'_>) {
        if request.tenant.exchanges_tokens {
            let _ = timeout(NOT_NEEDED_WITHIN, Box::pin(self.exchange(request))).await;
        }
    }

    /// Exchanges the client's token for those of the tenant's upstream servers, if these get one of each user.
    /// The client's own token goes to the authorization server only. An error is for the client. A client
    /// without a token gets one only if the tenant has no server that needs none.
    pub(crate) async fn exchange(&self, request: &mut FrontRequest<'_>) -> Result<(), Refused> {
        if !request.tenant.exchanges_tokens {
            return Ok(());
        }
        let subject = request.credential.token(&request.heads.authorization);
        let (tenant, principal) = (&request.tenant.name, &request.credential.principal);
        let links_at = self.urls.links(tenant).map(Arc::from);
        let exchanging = self.handle.exchange(tenant, principal, subject, links_at);
        let Some(exchanging) = exchanging else {
            return Ok(());
        };
        let exchanged = exchanging.await;
        request.tokens =
            Some(exchanged.map_err(|problem| Refused::not_exchanged(problem.to_string()))?);
        Ok(())
    }

    /// The answer to a message that needs more scopes: the client asks its issuer for them.
    pub(crate) fn step_up(
        &self,
        request: &FrontRequest<'_>,
        endpoint: Endpoint,
        needed: &Scopes,
    ) -> Refused {
        let host = route::host_of_tenant(request.head);
        let metadata = self.urls.metadata_url(request.tenant, endpoint, host.as_deref());
        let why = Unauthenticated::Scope(needed.clone(), None);
        challenge::refuse(&why, request.tenant, metadata)
    }

    /// The handle with which the request's client creates a session, if its address may do so now.
    pub(crate) fn creating_handle(&self, request: &FrontRequest<'_>) -> Result<Handle, Refused> {
        let client = self.rate.take(request.head)?;
        Ok(self.handle.of_client(client.map(AddressKey::address)))
    }

    /// Whether the client's address may open a page now. It needs no credential, and costs about as much as a
    /// session.
    pub(crate) fn admit_page(&self, head: &RequestHead) -> Result<(), Refused> {
        self.rate.take(head).map(drop)
    }

    /// The limit of a body. Only `initialize` is accepted without a session, so that limit is lower.
    pub(crate) fn body_bound(&self, in_session: bool) -> Bound {
        if in_session { self.collecting.of_session } else { self.collecting.of_initialize }
    }

    /// Collects the body of a request for a session, bounded in size and time.
    pub(crate) async fn collect(&self, request: &mut FrontRequest<'_>) -> Result<Bytes, Refused> {
        self.collect_within(request, self.body_bound(true)).await
    }

    /// Collects the body of a POST that names no session.
    pub(crate) async fn collect_initialize(
        &self,
        request: &mut FrontRequest<'_>,
    ) -> Result<Bytes, Refused> {
        self.collect_within(request, self.body_bound(false)).await
    }

    /// A body whose request names the session in its headers waits longer for memory: a refusal
    /// would make some clients end the session.
    async fn collect_within(
        &self,
        request: &mut FrontRequest<'_>,
        bound: Bound,
    ) -> Result<Bytes, Refused> {
        let encoding = request.heads.content_encoding;
        if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
            return Err(Refused::content_encoding());
        }
        let announced = request.heads.content_length;
        let in_session = request.heads.session.is_some();
        let tenant = &request.tenant.name;
        let collecting = &self.collecting;
        if let Some(connection) = request.connection {
            connection.pass_on().await;
        }
        let (payload, connection) = (&mut request.payload, request.connection);
        let collected =
            collecting.collect(payload, connection, announced, tenant, bound, in_session);
        let body = collected.await?;
        request.payload = Payload::None;
        request.exchange.received(body.len());
        Ok(body)
    }
}

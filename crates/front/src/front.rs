//! One request, from its head to its response: the checks that every transport shares.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use actix_http::body::BoxBody;
use actix_http::header::HeaderMap;
use actix_http::{ConnectionType, Method, Request, RequestHead, Response, header};
use actors::{Handle, RevocationsOfThread};
use budget::Budget;
use identity::Tokens;
use telemetry::Outcome;
use tenants::{Tenant, Tenants, TenantsOfThread};

use crate::account_links::AccountLinks;
use crate::authentication::{Authentication, Credential, Found, Unauthenticated};
use crate::body::Body;
use crate::collecting::Collecting;
use crate::cors::AllowedHeaders;
use crate::drain::{Drain, Present};
use crate::exchange::{Exchange, Exchanges, Reporting};
use crate::front_request::{FrontRequest, Service};
use crate::head_timeout::{HeadProgress, Serving};
use crate::heads::Heads;
use crate::origin::{Gate, split_port};
use crate::record_performing::perform_records;
use crate::refusal::Refused;
use crate::resource;
use crate::route::{self, Document, Endpoint};
use crate::unfinished::UnfinishedBodies;
use crate::{Error, Settings, challenge, cors, http_sse, metrics, streamable_http};

/// Answers requests. Each worker has one.
#[derive(Clone)]
pub(crate) struct Front {
    service: Service,
    authentication: Authentication,
    tenants: TenantsOfThread,
    exchanges: Exchanges,
    gate: Arc<Gate>,
    cors_headers: Arc<AllowedHeaders>,
    header_bytes_max: usize,
}

impl Front {
    /// A front under these settings.
    pub(crate) fn new(
        settings: &Settings,
        handle: Handle,
        tenants: &Tenants,
        bodies: Budget,
        drain: Arc<Drain>,
        reporting: &Reporting,
    ) -> Result<Self, Error> {
        let collecting = Collecting::new(settings, UnfinishedBodies::new(bodies));
        let service = Service::new(settings, handle, tenants, drain, collecting)?;
        Ok(Self {
            authentication: Authentication::new(
                Tokens::default(),
                Arc::clone(&service.urls),
                RevocationsOfThread::new(service.handle.revocations()),
            ),
            service,
            exchanges: Exchanges::new(reporting, tenants),
            tenants: TenantsOfThread::new(tenants),
            gate: Arc::new(Gate::new(settings)?),
            cors_headers: Arc::new(AllowedHeaders::new(settings)?),
            header_bytes_max: settings.header_bytes_max,
        })
    }

    /// A front for another worker. The two share no state that every request changes.
    pub(crate) fn for_worker(&self) -> Self {
        Self {
            authentication: self.authentication.for_worker(),
            exchanges: self.exchanges.for_worker(),
            service: self.service.for_worker(),
            ..self.clone()
        }
    }

    /// Registers the calling thread, whose connections this front serves: see [`Handle::register`]. Its
    /// streams are told of changed tenants, and long messages leave other threads its core.
    pub(crate) fn register_thread(&self) {
        fairness::pace_permits();
        self.service.handle.register();
        actix_rt::spawn(self.service.lapses.pass_changes_on());
        perform_records(self.exchanges.recorder());
    }

    /// Whether messages may be traced.
    pub(crate) fn may_trace(&self) -> bool {
        self.exchanges.may_trace()
    }

    /// Answers one request.
    pub(crate) async fn answer(&self, mut request: Request) -> Result<Response<Body>, Infallible> {
        let _present = Present::new(&self.service.drain);
        let payload = request.take_payload();
        let connection = HeadProgress::of(&request).map(Rc::as_ref);
        let is_ambiguous = connection.is_some_and(HeadProgress::is_ambiguous);
        let head = request.head();
        let (tenant, endpoint) = self.find(head);
        let mut exchange = self.exchanges.begin(&head.method, endpoint, tenant.as_ref());
        if endpoint.is_none()
            && let Some((document, path)) =
                route::find_document(head.uri.path(), self.service.urls.path())
        {
            let served = self.document(head, document, path, is_ambiguous);
            let response = served.unwrap_or_else(|refused| {
                note_refusal(&mut exchange, &refused, &head.headers);
                refused.unread(payload).into_response()
            });
            exchange.end(Outcome::Accepted);
            let response = resource::public(&head.method, response);
            return Ok(self.complete(head, None, response, exchange, is_ambiguous));
        }
        if endpoint.is_none()
            && let Some((tenant, page)) =
                route::find_link(head.uri.path(), self.service.urls.path())
            && let Some(tenant) = self.tenants.find(tenant)
            && tenant.exchanges_tokens
        {
            let (service, authentication) = (&self.service, &self.authentication);
            let links = AccountLinks::new(service, authentication, &tenant);
            // An authorization server sends the browser back, so the page before is of another site.
            let admitted = self.admit_host(head, Some(&tenant), is_ambiguous);
            let response = match admitted.and_then(|_| self.service.admit_page(head)) {
                Err(refused) => {
                    note_refusal(&mut exchange, &refused, &head.headers);
                    refused.unread(payload).into_response()
                }
                Ok(()) => Box::pin(links.answer(head, page)).await,
            };
            exchange.end(Outcome::Accepted);
            return Ok(self.complete(head, None, response, exchange, is_ambiguous));
        }
        let origin;
        let mut response = match self.admit(head, tenant.as_deref(), is_ambiguous) {
            Err(refused) => {
                note_refusal(&mut exchange, &refused, &head.headers);
                // A page of any origin may read why it was refused, which is no secret.
                origin = Heads::origin_alone(&head.headers);
                refused.unread(payload).into_response()
            }
            Ok(heads) => {
                origin = heads.origin;
                match (endpoint, &tenant) {
                    (Some(endpoint), Some(tenant)) => {
                        match self.authenticate(head, tenant, endpoint, &heads).await {
                            Err(refused) => {
                                note_refusal(&mut exchange, &refused, &head.headers);
                                refused.unread(payload).into_response()
                            }
                            Ok(credential) => {
                                let mut request = FrontRequest::new(
                                    tenant,
                                    credential,
                                    head,
                                    heads,
                                    payload,
                                    connection,
                                    &mut exchange,
                                );
                                self.serve(endpoint, &mut request).await
                            }
                        }
                    }
                    // A page can read the answer only after a preflight.
                    _ if is_preflight(head) => {
                        let methods = Endpoint::Mcp.methods();
                        self.preflight(methods, heads.preflight_headers, None)
                    }
                    _ => {
                        let refused = Refused::unknown_path(self.service.urls.path());
                        note_refusal(&mut exchange, &refused, &head.headers);
                        refused.unread(payload).into_response()
                    }
                }
            }
        };
        if let Some(origin) = origin {
            cors::expose(response.headers_mut(), origin);
        }
        // No cache stores an answer to a POST, so most need no `Vary`.
        if head.method != Method::POST || !response.status().is_success() || origin.is_some() {
            cors::vary(response.headers_mut());
        }
        Ok(self.complete(head, endpoint, response, exchange, is_ambiguous))
    }

    /// Has the connection closed behind a response where it must be, and reports the exchange.
    fn complete(
        &self,
        head: &RequestHead,
        endpoint: Option<Endpoint>,
        mut response: Response<Body>,
        exchange: Exchange,
        is_ambiguous: bool,
    ) -> Response<Body> {
        if is_ambiguous || self.service.drain.has_begun() {
            response.head_mut().set_connection_type(ConnectionType::Close);
        }
        metrics::count_response(endpoint, &head.method, response.status());
        exchange.finish(&response);
        // Neither the path nor a header is logged: they may hold session ids.
        tracing::debug!(method = %head.method, ?endpoint, status = response.status().as_u16());
        response
    }

    /// Refuses a body before its client sends it, if the client waits for that.
    pub(crate) fn expect(&self, request: Request) -> Result<Request, Response<BoxBody>> {
        let (tenant, endpoint) = self.find(request.head());
        let checked = Heads::read(&request.head().headers, self.header_bytes_max)
            .map_err(Refused::from)
            .and_then(|heads| {
                if let (Some(tenant), Some(endpoint)) = (&tenant, endpoint) {
                    // A token that is to be verified is verified before the body is read.
                    self.look_at_credential(request.head(), tenant, endpoint, &heads)?;
                }
                let is_post = request.method() == Method::POST;
                let in_session = heads.session.is_some() || endpoint == Some(Endpoint::Messages);
                let bound = self.service.body_bound(in_session);
                if is_post { Ok(bound.check(heads.content_length)?) } else { Ok(()) }
            });
        match checked {
            Ok(()) => Ok(request),
            Err(refused) => {
                drop(Serving::of(&request));
                let mut exchange =
                    self.exchanges.begin(request.method(), endpoint, tenant.as_ref());
                note_refusal(&mut exchange, &refused, &request.head().headers);
                let mut response = refused.into_response();
                // The client may send the body all the same.
                response.head_mut().set_connection_type(ConnectionType::Close);
                metrics::count_response(endpoint, request.method(), response.status());
                exchange.finish(&response);
                Err(response.map_into_boxed_body())
            }
        }
    }

    /// The tenant and the endpoint that a request names: by its path, or at the host of a tenant.
    fn find(&self, head: &RequestHead) -> (Option<Arc<Tenant>>, Option<Endpoint>) {
        let path = head.uri.path();
        if let Some((tenant, endpoint)) = route::find(path) {
            return (self.tenants.find(tenant), Some(endpoint));
        }
        match route::find_at_host(path) {
            // At any other host this is no endpoint.
            Some(endpoint) => match self.tenant_of_host(head) {
                Some(tenant) => (Some(tenant), Some(endpoint)),
                None => (None, None),
            },
            None => (None, None),
        }
    }

    /// The tenant whose host a request names, in its first line or else in its header.
    fn tenant_of_host(&self, head: &RequestHead) -> Option<Arc<Tenant>> {
        let authority = head.uri.authority().map(|authority| authority.as_str());
        let named = || head.headers.get(header::HOST)?.to_str().ok();
        self.tenant_at(authority.or_else(named)?)
    }

    fn tenant_at(&self, host: &str) -> Option<Arc<Tenant>> {
        self.tenants.of_host(split_port(host)?.0)
    }

    /// Reads the headers of a request, and checks its host.
    fn admit_host<'a>(
        &self,
        head: &'a RequestHead,
        tenant: Option<&Tenant>,
        is_ambiguous: bool,
    ) -> Result<Heads<'a>, Refused> {
        let heads = Heads::read(&head.headers, self.header_bytes_max)?;
        let scheme = head.uri.scheme_str();
        if is_ambiguous || scheme.is_some_and(|scheme| !matches!(scheme, "http" | "https")) {
            return Err(Refused::ambiguous());
        }
        // A request may name its host in its first line too; that one then takes precedence.
        let named = head.uri.authority().map(|authority| authority.as_str());
        let of_tenant = |host: &str| self.tenant_at(host).map(|tenant| tenant.name.clone());
        // A proxy may have decided by the other name, which is another tenant's.
        if let (Some(named), Some(host)) = (named, heads.host)
            && of_tenant(named) != of_tenant(host)
        {
            return Err(Refused::ambiguous());
        }
        // At a host of its own a tenant is served, and no other one.
        let allows = |host: Option<&str>| {
            let is_tenants = |host: &str| {
                of_tenant(host).is_some_and(|name| tenant.is_none_or(|tenant| tenant.name == name))
            };
            self.gate.allows_host(host) || host.is_some_and(is_tenants)
        };
        if !allows(heads.host) || named.is_some_and(|host| !allows(Some(host))) {
            return Err(Refused::host());
        }
        Ok(heads)
    }

    /// Checks the origin and the host of a request (SEC-01: on every method and path). A page
    /// that is admitted may read the response.
    fn admit<'a>(
        &self,
        head: &'a RequestHead,
        tenant: Option<&Tenant>,
        is_ambiguous: bool,
    ) -> Result<Heads<'a>, Refused> {
        let heads = self.admit_host(head, tenant, is_ambiguous)?;
        let tenants_own = tenant.map_or(&[][..], |tenant| &tenant.allowed_origins);
        match heads.origin {
            Some(origin)
                if !self.gate.allows_origin(origin, tenants_own)
                    && !tenant.is_some_and(|tenant| self.is_own_host(origin, tenant)) =>
            {
                Err(Refused::origin())
            }
            // A page of another site had its browser send the request without naming its origin, as
            // for an image.
            None if matches!(heads.fetch_site, Some("cross-site" | "same-site")) => {
                Err(Refused::origin())
            }
            _ => match heads.expect {
                Some(expected) if !expected.eq_ignore_ascii_case("100-continue") => {
                    Err(Refused::expectation())
                }
                _ => Ok(heads),
            },
        }
    }

    /// Finds the client of a request (SEC-05).
    async fn authenticate(
        &self,
        head: &RequestHead,
        tenant: &Tenant,
        endpoint: Endpoint,
        heads: &Heads<'_>,
    ) -> Result<Credential, Refused> {
        match self.look_at_credential(head, tenant, endpoint, heads)? {
            Found::Credential(credential) => Ok(credential),
            Found::Token { rules, token, digest } => {
                // Boxed: a verified token is found without it.
                let verified =
                    Box::pin(self.authentication.verify(tenant, rules, token, digest)).await;
                verified.map_err(|why| self.challenge(&why, head, tenant, endpoint))
            }
        }
    }

    /// Finds the client of a request, or the token that is to be verified. A preflight has no
    /// credential (CORS-02), and is answered without one.
    fn look_at_credential<'a>(
        &self,
        head: &RequestHead,
        tenant: &'a Tenant,
        endpoint: Endpoint,
        heads: &Heads<'a>,
    ) -> Result<Found<'a>, Refused> {
        if head.method == Method::OPTIONS {
            return Ok(Found::Credential(self.authentication.of_anyone()));
        }
        let found = self.authentication.find(tenant, heads.authorization);
        found.map_err(|why| self.challenge(&why, head, tenant, endpoint))
    }

    fn challenge(
        &self,
        why: &Unauthenticated,
        head: &RequestHead,
        tenant: &Tenant,
        endpoint: Endpoint,
    ) -> Refused {
        let host = route::host_of_tenant(head);
        let metadata = self.service.urls.metadata_url(tenant, endpoint, host.as_deref());
        challenge::refuse(why, tenant, metadata)
    }

    /// The answer to a request for a document that clients read before they have a token. Origins are
    /// not checked: it says nothing that the challenge does not say.
    fn document(
        &self,
        head: &RequestHead,
        document: Document,
        path: &str,
        is_ambiguous: bool,
    ) -> Result<Response<Body>, Refused> {
        if is_ambiguous {
            return Err(Refused::ambiguous());
        }
        resource::only_get(&head.method)?;
        let found = self.resource(head, path).and_then(|(tenant, endpoint, host)| {
            let rules = tenant.access.oauth()?;
            match document {
                Document::Resource => {
                    self.service.urls.metadata(&tenant, rules, endpoint, host.as_deref())
                }
                Document::Issuer => resource::to_issuer(rules),
            }
        });
        found.ok_or_else(Refused::no_document)
    }

    /// The endpoint that a document is about: the one of this path, or of the host alone.
    fn resource(
        &self,
        head: &RequestHead,
        path: &str,
    ) -> Option<(Arc<Tenant>, Endpoint, Option<String>)> {
        if let Some((tenant, endpoint)) = route::find(path) {
            return Some((self.tenants.find(tenant)?, endpoint.protected(), None));
        }
        let endpoint = match path {
            "" => Endpoint::Mcp,
            path => route::find_at_host(path)?.protected(),
        };
        Some((self.tenant_of_host(head)?, endpoint, route::host_named(head)))
    }

    /// Whether a page was served at a host of the tenant, over TLS.
    fn is_own_host(&self, origin: &str, tenant: &Tenant) -> bool {
        let at = origin.strip_prefix("https://").and_then(|authority| self.tenant_at(authority));
        at.is_some_and(|owner| owner.name == tenant.name)
    }

    fn preflight(
        &self,
        methods: &'static str,
        requested: Option<&str>,
        tenant: Option<&Tenant>,
    ) -> Response<Body> {
        cors::preflight(methods, requested, self.cors_headers.names(tenant))
    }

    async fn serve(&self, endpoint: Endpoint, request: &mut FrontRequest<'_>) -> Response<Body> {
        if *request.method == Method::OPTIONS {
            let requested = request.heads.preflight_headers;
            return self.preflight(endpoint.methods(), requested, Some(request.tenant));
        }
        wait_for_turn(request).await;
        if request.tenant.is_leaving && request.begins_session(endpoint) {
            return Refused::unknown_path(self.service.urls.path())
                .unread(request.take_payload())
                .into_response();
        }
        let served = match endpoint {
            Endpoint::Mcp => streamable_http::answer(&self.service, request).await,
            // Boxed: few clients use this transport, and each request would reserve memory for it.
            Endpoint::Sse => Box::pin(http_sse::open(&self.service, request)).await,
            Endpoint::Messages => Box::pin(http_sse::post(&self.service, request)).await,
        };
        // The rest of the body is not read any more.
        served.unwrap_or_else(|refused| {
            note_refusal(request.exchange, &refused, &request.head.headers);
            refused.unread(request.take_payload()).into_response()
        })
    }
}

/// Waits for the request's turn if its tenant has many while other threads use the core.
async fn wait_for_turn(request: &FrontRequest<'_>) {
    if let Some(began) = request.exchange.began()
        && fairness::note_request(&request.tenant.name, began)
    {
        metrics::REQUESTS_DELAYED.inc();
        fairness::request_turn(&request.tenant.name).await;
    }
}

/// Whether a browser asks for a page whether it may send a request.
fn is_preflight(head: &RequestHead) -> bool {
    let has = |name| head.headers.contains_key(name);
    head.method == Method::OPTIONS
        && has(header::ORIGIN)
        && has(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Notes how and why the request with these headers is refused.
fn note_refusal(exchange: &mut Exchange, refused: &Refused, headers: &HeaderMap) {
    exchange.refused_by(refused.rejection().code.number(), refused.cause(), headers);
}

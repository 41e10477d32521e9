//! Performs exchanges with one upstream server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use budget::{Held, Share};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT,
};
use hyper::{Method, Request, Response};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use protocol::header_params::Invalid;
use protocol::{AccountLink, Revision, URL_ELICITATION_REQUIRED, UpstreamTokens};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::time::{sleep, timeout};

use crate::breaker::{Admitted, Breaker};
use crate::charge::Charge;
use crate::connector::{Connector, IDLE, NotPermitted, TooLate};
use crate::content::{self, Content};
use crate::credential::{Credential, Linking, Token, User, refuses_token};
use crate::exchange::{Exchange, ExchangeEvent, HeaderText, SentEvent, Verb};
use crate::left_out::LeftOut;
use crate::machine::ExchangeId;
use crate::metrics::{self, Open};
use crate::reading::{self, EventReader};
use crate::sending::Outgoing;
use crate::sent::Sent;
use crate::settings::HttpSettings;
use crate::tracked::Answered;
use crate::url::Url;
use crate::{CredentialProblem, Failure};

/// How long a stream that was resumed may be quiet before it is requested once more. Some servers send
/// what they have stored, and later messages only to the next request.
const RESUMED_QUIET: Duration = Duration::from_secs(5);

/// How long a message without an answer may take to be accepted, and how long the head of a stream.
const ACCEPT_WITHIN: Duration = Duration::from_secs(30);
/// How long the end of a session may take. Without it the server ends the session later.
const DELETE_WITHIN: Duration = Duration::from_secs(5);
/// How long an exchange waits for a connection while all are in use.
const PERMIT_WITHIN: Duration = Duration::from_secs(10);
/// How long the first exchange of a session waits for the next try to reach the server.
const TRY_WITHIN: Duration = Duration::from_secs(10);
/// Most idle connections of a client that are kept.
pub const IDLE_MAX: usize = 64;
/// Most bytes of a head, and of what hyper reads at once.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most bytes that are read of a body that is not needed, or that has an error.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// Most redirects that one exchange follows.
const REDIRECTS_MAX: usize = 3;
/// The name of the first event of a server of the older HTTP+SSE.
const ENDPOINT: &str = "endpoint";
/// What an event may have beside its data.
const EVENT_FIELDS_BYTES: usize = 8 << 10;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Reaches one upstream server. Cheap to clone.
#[derive(Clone)]
pub struct Client(Arc<Shared>);

struct Shared {
    /// The tenant, whose permits its long messages take.
    tenant: Arc<str>,
    /// The backend, for logs.
    name: String,
    url: Url,
    headers: HeaderMap,
    credential: Option<Credential>,
    pool: Pool<Connector, Outgoing>,
    connections: Connections,
    breaker: Breaker,
    left_out: LeftOut,
    is_retired: AtomicBool,
    settings: HttpSettings,
}

/// The connections that may be in use. Requests cannot take those by which the answers to server
/// requests are sent, without which some requests never end.
struct Connections {
    requests: Semaphore,
    notes: Semaphore,
    streams: Semaphore,
}

impl Connections {
    fn new(most: usize) -> Self {
        let (streams, notes) = (most / 2, most / 8);
        Self {
            requests: Semaphore::new(most - streams - notes),
            notes: Semaphore::new(notes),
            streams: Semaphore::new(streams),
        }
    }

    async fn permit(&self, verb: &Verb) -> Result<SemaphorePermit<'_>, Failure> {
        let share = match verb {
            Verb::Request(_) | Verb::Resume(_) => &self.requests,
            Verb::Note(_) | Verb::Delete => &self.notes,
            // A session works without this stream, so it does not wait for one.
            Verb::Listen(_) => return self.streams.try_acquire().map_err(|_| Failure::Busy),
        };
        match timeout(PERMIT_WITHIN, share.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Failure::Busy),
        }
    }
}

/// The events of one exchange.
struct Events<'a> {
    id: ExchangeId,
    sender: &'a mpsc::Sender<SentEvent>,
    /// What is charged for bytes that the session does not have.
    share: Option<&'a Share>,
}

impl Events<'_> {
    /// Sends an event without messages.
    async fn send(&self, event: ExchangeEvent) {
        self.send_charged(event, None).await;
    }

    async fn send_charged(&self, event: ExchangeEvent, held: Option<Held>) {
        // Without a receiver this exchange is about to be dropped.
        let _ = self.sender.send(SentEvent { exchange: self.id, event, held }).await;
    }
}

impl Client {
    /// Creates a client of the tenant with this share, to which tokens of users are charged. `name` is that of the
    /// backend. Opens no connection.
    pub fn new(
        share: &Share,
        name: impl Into<String>,
        settings: &HttpSettings,
    ) -> Result<Self, Vec<String>> {
        let read = settings.read();
        let (url, headers) =
            read.map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let connector = Connector::new(settings, url.is_encrypted()).map_err(|error| {
            vec![format!(
                "`url` has `https:`, and the certificates of the system cannot be read: {error}; install \
                 them, or name them with SSL_CERT_FILE"
            )]
        })?;
        let name = name.into();
        let credential = Credential::new(&name, settings, &url, share).map_err(|error| {
            vec![format!(
                "`credential` needs `https:`, and the certificates of the system cannot be read: {error}; \
                 install them, or name them with SSL_CERT_FILE"
            )]
        })?;
        let mut pool = Pool::builder(TokioExecutor::new());
        pool.pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_MAX)
            .http1_max_buf_size(HEAD_BYTES_MAX);
        Ok(Self(Arc::new(Shared {
            tenant: Arc::clone(share.tenant()),
            name,
            url,
            headers,
            credential,
            pool: pool.build(connector),
            connections: Connections::new(settings.connections_max),
            breaker: Breaker::new(),
            left_out: LeftOut::default(),
            is_retired: AtomicBool::new(false),
            settings: settings.clone(),
        })))
    }

    /// Whether the end of a session of the server ends that of its client.
    pub fn is_stateful(&self) -> bool {
        self.0.settings.stateful
    }

    /// The tenant, whose permits its long messages take.
    pub fn tenant(&self) -> &Arc<str> {
        &self.0.tenant
    }

    /// The revision that the server is asked for, if the settings have one.
    pub fn revision(&self) -> Option<Revision> {
        self.0.settings.revision()
    }

    /// Logs that these tools are left out of the server's lists, once each.
    pub fn note_left_out(&self, tools: &[(String, Invalid)]) {
        self.0.left_out.note(&self.0.name, tools);
    }

    /// The tools that were left out, for operators.
    pub fn remarks(&self) -> Vec<String> {
        self.0.left_out.remarks()
    }

    /// The backend, for logs.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether the server needs a token of each user.
    pub fn needs_tokens_of_clients(&self) -> bool {
        self.0.credential.as_ref().is_some_and(Credential::is_of_clients)
    }

    /// How users link accounts at the server, if they do.
    pub fn linking(&self) -> Option<&Linking> {
        self.0.credential.as_ref()?.linking()
    }

    /// The token of a user for the server; `None` if it needs none of users.
    pub fn exchange(
        &self,
        user: &User,
    ) -> Option<impl Future<Output = Result<UpstreamTokens, CredentialProblem>> + Send + use<>>
    {
        self.0.credential.as_ref()?.exchange(user)
    }

    /// Notes that the settings have another client in place of this one.
    pub fn retire(&self) {
        self.0.is_retired.store(true, Ordering::Relaxed);
    }

    /// Whether the settings have another client in place of this one.
    pub fn is_retired(&self) -> bool {
        self.0.is_retired.load(Ordering::Relaxed)
    }

    /// How long all exchanges fail at once, because the server could not be reached; `None` if they are sent.
    pub fn held_back_for(&self) -> Option<Duration> {
        self.0.breaker.held_back_for()
    }

    /// Performs one exchange, and sends its events. The last one satisfies
    /// [`ExchangeEvent::is_last`]. `sent` is dropped or used when that is known. A caller that drops the future
    /// cuts the connection. What is read is charged to the share of the tenant, and events have this charge.
    pub async fn perform(
        &self,
        id: ExchangeId,
        exchange: Exchange,
        sent: Option<Sent>,
        events: &mpsc::Sender<SentEvent>,
        share: Option<&Share>,
    ) {
        if !exchange.after.is_zero() {
            sleep(exchange.after).await;
        }
        let _open = Open::new();
        let events = Events { id, sender: events, share };
        let last = match self.attempt(&exchange, sent, &events).await {
            Ok(last) => last,
            Err(failure) => ExchangeEvent::Failed(failure),
        };
        metrics::count(match &last {
            ExchangeEvent::Failed(failure) => failure.label(),
            ExchangeEvent::Refused { status, .. } if *status >= 500 => metrics::FAILED,
            ExchangeEvent::Refused { .. } | ExchangeEvent::SessionGone => metrics::REFUSED,
            _ => metrics::ANSWERED,
        });
        events.send(last).await;
    }

    async fn attempt(
        &self,
        exchange: &Exchange,
        sent: Option<Sent>,
        events: &Events<'_>,
    ) -> Result<ExchangeEvent, Failure> {
        let tokens = exchange.tokens.as_ref();
        if let Some(link) =
            self.0.credential.as_ref().and_then(|credential| credential.link(tokens))
        {
            return Ok(ExchangeEvent::Refused { status: 401, error: Some(link_required(&link)) });
        }
        let token = self.token(tokens, None).await?;
        // Before the permit: exchanges that wait for a server that cannot be reached use no connection.
        let admitted = self.admit(exchange).await?;
        let _permit = self.0.connections.permit(&exchange.verb).await?;
        let mut response = self.response(exchange, sent.as_ref(), token.as_ref(), admitted).await?;
        if let Some(refused) = &token
            && refuses_token(response.status().as_u16(), response.headers())
        {
            // It was refused, so it was not performed. A cancellation waits until it is sent again.
            sent.iter().for_each(Sent::take_back);
            if let Ok(renewed) = self.token(tokens, Some(refused)).await {
                let admitted = self.admit(exchange).await?;
                response =
                    self.response(exchange, sent.as_ref(), renewed.as_ref(), admitted).await?;
            }
        }
        drop(sent);
        let status = response.status().as_u16();
        match status {
            200..300 => self.success(exchange, response, events).await,
            404 if exchange.session.is_some() => Ok(ExchangeEvent::SessionGone),
            300..400 => Err(Failure::Redirect),
            _ => {
                let is_json = Content::of(response.headers()) == Content::Json;
                let (tenant, mut charge) = (&self.0.tenant, Charge::new(events.share));
                let body = response.into_body();
                let body = reading::whole(tenant, body, ERROR_BYTES_MAX, &mut charge);
                let body = timeout(ACCEPT_WITHIN, body).await;
                let body = body.ok().and_then(Result::ok).filter(|_| is_json);
                let error = body.and_then(content::error_in);
                Ok(ExchangeEvent::Refused { status, error })
            }
        }
    }

    /// The token for a request, or another one than that which the server refused.
    async fn token(
        &self,
        tokens: Option<&UpstreamTokens>,
        refused: Option<&Token>,
    ) -> Result<Option<Token>, Failure> {
        let Some(credential) = &self.0.credential else { return Ok(None) };
        credential.token(tokens, refused).await.map(Some).map_err(Failure::Credential)
    }

    /// Whether an exchange may be sent now. One that begins a session waits for that.
    async fn admit(&self, exchange: &Exchange) -> Result<Admitted<'_>, Failure> {
        let is_first = exchange.revision.is_none() && matches!(exchange.verb, Verb::Request(_));
        let admitted = match self.0.breaker.admit() {
            None if is_first => self.0.breaker.admit_within(TRY_WITHIN).await,
            admitted => admitted,
        };
        admitted.ok_or(Failure::HeldBack)
    }

    /// The response, after redirects within the origin.
    async fn response<'a>(
        &'a self,
        exchange: &Exchange,
        sent: Option<&Sent>,
        token: Option<&Token>,
        admitted: Admitted<'a>,
    ) -> Result<Response<Incoming>, Failure> {
        let mut first = Some(admitted);
        let within = match exchange.verb {
            Verb::Request(_) | Verb::Resume(_) => self.0.settings.silence(),
            Verb::Note(_) | Verb::Listen(_) => ACCEPT_WITHIN,
            Verb::Delete => DELETE_WITHIN,
        };
        let mut url = exchange.to.clone().unwrap_or_else(|| self.0.url.clone());
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.request(&url, exchange, sent.cloned())?;
            let authorization = token.map(|token| (AUTHORIZATION, token.header()));
            request.headers_mut().extend(authorization);
            let admitted = first.take().or_else(|| self.0.breaker.admit());
            let response = self.sent(request, within, admitted.ok_or(Failure::HeldBack)?).await?;
            // Only these keep the method and the body.
            if !matches!(response.status().as_u16(), 307 | 308) {
                return Ok(response);
            }
            let location = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            url = location.and_then(|to| url.redirected(to)).ok_or(Failure::Redirect)?;
        }
        Err(Failure::Redirect)
    }

    /// Sends one request. One that could not be written to an idle connection is sent on another by the pool.
    async fn sent(
        &self,
        request: Request<Outgoing>,
        within: Duration,
        admitted: Admitted<'_>,
    ) -> Result<Response<Incoming>, Failure> {
        match timeout(within, self.0.pool.request(request)).await {
            Ok(Ok(response)) => {
                Answered::note(response.extensions(), &self.0.tenant);
                admitted.reached();
                Ok(response)
            }
            Ok(Err(error)) => {
                let failure = self.failed(&error);
                // A server may close an idle connection at any time.
                let is_fault = failure.is_of_transport() && !Answered::before(&error);
                if is_fault && admitted.fault() {
                    tracing::warn!(
                        backend = self.0.name,
                        "an upstream server is not reachable; until it is, its exchanges fail at once"
                    );
                }
                Err(failure)
            }
            // A slow answer is no fault of the transport.
            Err(_) => Err(Failure::Silent),
        }
    }

    fn request(
        &self,
        url: &Url,
        exchange: &Exchange,
        sent: Option<Sent>,
    ) -> Result<Request<Outgoing>, Failure> {
        let (method, accept, body) = match &exchange.verb {
            Verb::Request(body) | Verb::Note(body) => {
                (Method::POST, "application/json, text/event-stream", Some(body.clone()))
            }
            Verb::Listen(_) | Verb::Resume(_) => (Method::GET, "text/event-stream", None),
            Verb::Delete => (Method::DELETE, "*/*", None),
        };
        let mut headers = self.0.headers.clone();
        headers.entry(USER_AGENT).or_insert(HeaderValue::from_static("roundhouse"));
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        if body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let mut insert = |name: HeaderName, value: Option<&HeaderText>| {
            headers.extend(value.map(|value| (name, value.value())));
        };
        insert(SESSION_ID, exchange.session.as_ref());
        insert(PROTOCOL_VERSION, exchange.revision.as_ref());
        match &exchange.verb {
            Verb::Listen(cursor) => insert(LAST_EVENT_ID, cursor.as_ref()),
            Verb::Resume(cursor) => insert(LAST_EVENT_ID, Some(cursor)),
            _ => {}
        }
        for (name, value) in exchange.mirrored.iter().flat_map(|mirrored| mirrored.headers()) {
            // The machine makes none that is not one of HTTP.
            let (Ok(name), Ok(mut value)) =
                (name.parse::<HeaderName>(), HeaderValue::from_bytes(value))
            else {
                continue;
            };
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let request = Request::builder().method(method).uri(url.uri().clone());
        let request = request.body(Outgoing::new(&self.0.tenant, body.unwrap_or_default(), sent));
        let mut request = request.map_err(|_| Failure::Connect)?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    async fn success(
        &self,
        exchange: &Exchange,
        response: Response<Incoming>,
        events: &Events<'_>,
    ) -> Result<ExchangeEvent, Failure> {
        let (head, body) = response.into_parts();
        if matches!(exchange.verb, Verb::Note(_) | Verb::Delete) {
            // A connection whose body was read can be used again.
            let rest = reading::skip(&self.0.tenant, body, ERROR_BYTES_MAX);
            if let Ok(Ok(_)) = timeout(DELETE_WITHIN, rest).await {
                Answered::note_read(&head.extensions);
            }
            return Ok(ExchangeEvent::Accepted);
        }
        let session = match head.headers.get(SESSION_ID) {
            None => None,
            Some(id) => Some(HeaderText::visible(id.as_bytes()).ok_or(Failure::SessionId)?),
        };
        let content = match (head.status.as_u16(), Content::of(&head.headers)) {
            (202 | 204, _) => return Ok(ExchangeEvent::Accepted),
            (_, Content::Other) => return Err(Failure::ContentType),
            (_, content) => content,
        };
        events.send(ExchangeEvent::Opened(session)).await;
        match content {
            Content::Events => {
                if self.stream(exchange, body, events).await? {
                    Answered::note_read(&head.extensions);
                }
            }
            _ => {
                let most = self.0.settings.message_bytes_max;
                let mut charge = Charge::new(events.share);
                let body = reading::whole(&self.0.tenant, body, most, &mut charge);
                let body = timeout(self.0.settings.silence(), body).await;
                let body = body.map_err(|_| Failure::Silent)??;
                Answered::note_read(&head.extensions);
                let bytes = body.len();
                let messages = reading::messages(&self.0.tenant, body).await?;
                let event = ExchangeEvent::Event { messages, id: None, retry_ms: None };
                events.send_charged(event, charge.hand_on(bytes)).await;
            }
        }
        Ok(ExchangeEvent::Ended)
    }

    /// Reads a stream to its end, or for as long as it is useful. Returns whether it has ended.
    async fn stream(
        &self,
        exchange: &Exchange,
        mut body: Incoming,
        events: &Events<'_>,
    ) -> Result<bool, Failure> {
        let most = self.0.settings.message_bytes_max.saturating_add(EVENT_FIELDS_BYTES);
        let mut reader = EventReader::new(&self.0.tenant, most, Charge::new(events.share));
        loop {
            let frame = match exchange.verb {
                Verb::Listen(_) => body.frame().await,
                Verb::Resume(_) => match timeout(RESUMED_QUIET, body.frame()).await {
                    Ok(frame) => frame,
                    Err(_) => return Ok(false),
                },
                _ => {
                    let frame = timeout(self.0.settings.silence(), body.frame()).await;
                    frame.map_err(|_| Failure::Silent)?
                }
            };
            let Some(frame) = frame else { return Ok(true) };
            let Ok(data) = frame.map_err(|_| Failure::Lost)?.into_data() else { continue };
            let (decoded, fed) = reader.feed(data).await?;
            for event in decoded {
                reader.begin_event().await;
                let event = match event.event.as_deref() {
                    Some(ENDPOINT) => self.endpoint(&event)?,
                    _ => reader.read(event).await,
                };
                let held = reader.hand_on(event.bytes());
                events.send_charged(event, held).await;
            }
            reader.note_sent();
            fed.map_err(|_| Failure::TooLarge)?;
        }
    }

    /// The URL for messages. Credentials are sent there, so it has the same origin.
    fn endpoint(&self, event: &protocol::sse::Event) -> Result<ExchangeEvent, Failure> {
        let url = event.data.as_deref().and_then(|data| self.0.url.redirected(data));
        url.map(ExchangeEvent::Endpoint).ok_or(Failure::Redirect)
    }

    /// Logs an error of the connection. Clients get only the kind of it.
    fn failed(&self, error: &hyper_util::client::legacy::Error) -> Failure {
        let mut cause: &(dyn std::error::Error + 'static) = error;
        let mut failure = if error.is_connect() { Failure::Connect } else { Failure::Lost };
        loop {
            // The inner error of an I/O error is not its source.
            let inner = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
            let inner = inner.map(|inner| inner as &(dyn std::error::Error + 'static));
            if cause.is::<NotPermitted>() || inner.is_some_and(|inner| inner.is::<NotPermitted>()) {
                failure = Failure::NotPermitted;
            }
            if cause.is::<TooLate>() || inner.is_some_and(|inner| inner.is::<TooLate>()) {
                failure = Failure::ConnectTimeout;
            }
            match cause.source() {
                Some(source) => cause = source,
                None => break,
            }
        }
        tracing::warn!(
            backend = self.0.name,
            origin = self.0.url.origin(),
            %cause,
            "an exchange with an upstream server failed"
        );
        failure
    }
}

/// The error that has a client's user open a page first (ELI-05). The text has the URL as well: not all clients
/// read the data.
fn link_required(link: &AccountLink) -> protocol::Response {
    let message = format!("link your account at the upstream server first: open {}", link.url);
    let elicitation = serde_json::json!({
        "mode": "url",
        "elicitationId": link.id,
        "url": link.url,
        "message": "Link your account at the server of this tool.",
    });
    let data = serde_json::json!({ "elicitations": [elicitation] }).to_string();
    protocol::Response::error(None, URL_ELICITATION_REQUIRED, &message, Some(data.as_bytes()))
}

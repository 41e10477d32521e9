//! Maps refusals to statuses, headers and JSON-RPC errors. Only this file and the transports' own
//! answers name statuses.

use std::time::Duration;

use actix_http::header::{self, HeaderName, HeaderValue};
use actix_http::{Payload, Response, StatusCode};
use actors::Refusal;
use protocol::{ErrorCode, Rejection, RequestId};

use crate::audit_reading::RefusalCause;
use crate::body::Body;
use crate::collecting::Uncollected;
use crate::heads::Fault;
use crate::over_limit::OverLimit;

/// The `Retry-After` of a 429 or 503. By then the node may have restarted, or another session of
/// the tenant may have ended.
const RETRY_AFTER_SECS: u32 = 2;

/// The response to a refused request.
pub(crate) struct Refused {
    status: StatusCode,
    /// The JSON-RPC error of the body; without an id where the request's is not known (POST-09).
    rejection: Rejection,
    retry_after_secs: Option<u32>,
    /// Boxed, so that a refusal stays small.
    headers: Option<Box<Headers>>,
    unread: Payload,
}

/// The headers of few refusals, and the cause of most.
#[derive(Default)]
struct Headers {
    /// Why, for the audit log.
    cause: Option<RefusalCause>,
    allow: Option<&'static str>,
    challenge: Option<HeaderValue>,
    /// `RateLimit-Policy` and `RateLimit`.
    rate_limit: Option<(HeaderValue, HeaderValue)>,
}

impl Headers {
    fn allow(methods: &'static str) -> Option<Box<Self>> {
        Some(Box::new(Self { allow: Some(methods), ..Self::default() }))
    }
}

impl Refused {
    fn new(status: StatusCode, code: ErrorCode, message: impl Into<String>) -> Self {
        let rejection = Rejection::new(code, message);
        let (retry_after_secs, headers) = (None, None);
        Self { status, rejection, retry_after_secs, headers, unread: Payload::None }
    }

    fn invalid(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, ErrorCode::InvalidRequest, message)
    }

    /// Adds the unread rest of the request's body.
    pub(crate) fn unread(mut self, payload: Payload) -> Self {
        self.unread = payload;
        self
    }

    /// Sets the id of the request that is answered.
    pub(crate) fn of(mut self, id: Option<RequestId>) -> Self {
        self.rejection.id = id;
        self
    }

    /// No such path, or no such tenant: the response does not reveal which of the two.
    /// The text is the same for every path; `base` is the path of the public URL.
    pub(crate) fn unknown_path(base: &str) -> Self {
        Self::invalid(
            StatusCode::NOT_FOUND,
            format!(
                "there is no endpoint at this path; a tenant's endpoint is {base}/TENANT/mcp \
                 (Streamable HTTP) or {base}/TENANT/sse (HTTP+SSE), without a slash \
                 at its end"
            ),
        )
    }

    /// No document is there: the tenant has none, or is not there. The response does not reveal which.
    pub(crate) fn no_document() -> Self {
        Self::invalid(
            StatusCode::NOT_FOUND,
            "there is no metadata at this path; that of an endpoint with OAuth tokens is where the \
             challenge in its 401 says",
        )
    }

    /// The path does not take this method (GET-02).
    pub(crate) fn method(allow: &'static str) -> Self {
        let message = format!("the endpoint takes {allow}");
        let refused = Self::new(StatusCode::METHOD_NOT_ALLOWED, ErrorCode::Refused, message);
        Self { headers: Headers::allow(allow), ..refused }
    }

    /// The origin of the page is not allowed (SEC-02).
    pub(crate) fn origin() -> Self {
        Self::invalid(StatusCode::FORBIDDEN, "the origin is not allowed here")
    }

    /// The sender is not known: its credential is missing, malformed or not valid (SEC-08).
    pub(crate) fn unauthenticated(
        status: StatusCode,
        challenge: Option<HeaderValue>,
        message: String,
    ) -> Self {
        let headers = challenge.map(|challenge| {
            Box::new(Headers { challenge: Some(challenge), ..Headers::default() })
        });
        Self { headers, ..Self::new(status, ErrorCode::Refused, message) }
    }

    /// The same for this cause.
    pub(crate) fn by(mut self, cause: RefusalCause) -> Self {
        self.headers.get_or_insert_default().cause = Some(cause);
        self
    }

    /// The same for this reason in audit records.
    fn because(self, reason: &'static str) -> Self {
        self.by(RefusalCause::Reason(reason))
    }

    /// Why the request is refused, if audit records say that.
    pub(crate) fn cause(&self) -> Option<&RefusalCause> {
        self.headers.as_ref()?.cause.as_ref()
    }

    /// The audit record of the request was not written in time.
    pub(crate) fn unrecorded(held: audit::Held) -> Self {
        Self {
            retry_after_secs: Some(RETRY_AFTER_SECS),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Refused, held.to_string())
        }
    }

    /// The client may not send the message.
    pub(crate) fn not_permitted(rejection: Rejection) -> Self {
        let refused = Self::new(StatusCode::FORBIDDEN, ErrorCode::Refused, "");
        Self { rejection, ..refused }.because("permissions")
    }

    /// The client may use no method here, or may not open a session.
    pub(crate) fn kept_out() -> Self {
        let why = "there is no such method";
        Self::not_permitted(Rejection::new(ErrorCode::InvalidParams, why))
    }

    /// The issuer of a token could not be asked about it.
    pub(crate) fn issuer_unavailable(message: String) -> Self {
        Self {
            retry_after_secs: Some(RETRY_AFTER_SECS),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Refused, message)
        }
    }

    /// The client's token was not exchanged for one of the upstream server. Not 401: the client's token is
    /// valid, and signing in again would not help.
    pub(crate) fn not_exchanged(message: String) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, ErrorCode::InternalError, message)
    }

    /// The host name is not one of this server's (SEC-03).
    pub(crate) fn host() -> Self {
        Self::invalid(StatusCode::FORBIDDEN, "the host is not one of this server's")
    }

    /// Another parser could read the head in another way.
    pub(crate) fn ambiguous() -> Self {
        Self::invalid(
            StatusCode::BAD_REQUEST,
            "the head is ambiguous; end its lines with CR LF, and name a target without a fragment \
             and with no scheme but http or https",
        )
    }

    /// `Expect` asks for something other than `100-continue`.
    pub(crate) fn expectation() -> Self {
        Self::invalid(
            StatusCode::EXPECTATION_FAILED,
            "only `Expect: 100-continue` can be met; leave the header out",
        )
    }

    /// The body is encoded.
    pub(crate) fn content_encoding() -> Self {
        Self::invalid(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "no `Content-Encoding` is known here; send the message as it is",
        )
    }

    /// The clients of one address create sessions too fast.
    pub(crate) fn too_many_sessions_of_address(wait: Duration) -> Self {
        let secs = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).saturating_add(1);
        let refused = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            ErrorCode::Refused,
            "your address creates sessions faster than it may; try again later, and keep \
             sessions instead of opening a new one for each request",
        );
        Self { retry_after_secs: Some(secs), ..refused }.because("address")
    }

    /// The body is not declared to be JSON (POST-04).
    pub(crate) fn content_type() -> Self {
        Self::invalid(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "send the message with `Content-Type: application/json`, in UTF-8",
        )
    }

    /// `Accept` excludes the content type of the answer (POST-03, GET-03).
    pub(crate) fn accept(needed: &'static str) -> Self {
        let message = format!("the client must accept {needed}");
        Self::invalid(StatusCode::NOT_ACCEPTABLE, message)
    }

    /// The request names no session (SES-05).
    pub(crate) fn no_session() -> Self {
        Self::invalid(
            StatusCode::BAD_REQUEST,
            "the `Mcp-Session-Id` header is missing; initialize a session first",
        )
    }

    /// An `initialize` that names a session (SES-11).
    pub(crate) fn initialize_in_session() -> Self {
        Self::invalid(
            StatusCode::BAD_REQUEST,
            "a session is initialized once; send `initialize` without `Mcp-Session-Id`",
        )
    }

    /// The request names a revision that is not supported here (VER-03).
    pub(crate) fn version() -> Self {
        let known = protocol::Revision::ALL.map(protocol::Revision::as_str).join(", ");
        let message =
            format!("`MCP-Protocol-Version` names no revision known here; known are {known}");
        Self::new(StatusCode::BAD_REQUEST, ErrorCode::Refused, message)
    }

    /// Is the cause a limit, a state or a fault of the node, and not the request?
    pub(crate) fn is_ours(&self) -> bool {
        self.status.is_server_error()
    }

    /// The number of the status.
    pub(crate) fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// The JSON-RPC error.
    pub(crate) fn rejection(&self) -> &Rejection {
        &self.rejection
    }

    /// The JSON-RPC error, for transports without statuses.
    pub(crate) fn into_rejection(self) -> Rejection {
        self.rejection
    }

    /// The whole response.
    pub(crate) fn into_response(self) -> Response<Body> {
        let error = protocol::Response::rejecting(&self.rejection).raw().clone();
        let body = match self.unread {
            Payload::None => Body::whole(error),
            unread => Body::Early { answer: error, _unread: unread },
        };
        let mut response = Response::with_body(self.status, body);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let Headers { allow, challenge, rate_limit, .. } =
            self.headers.map(|all| *all).unwrap_or_default();
        if let Some(allow) = allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(challenge) = challenge {
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let Some((policy, limit)) = rate_limit {
            headers.insert(HeaderName::from_static("ratelimit-policy"), policy);
            headers.insert(HeaderName::from_static("ratelimit"), limit);
        }
        if let Some(secs) = self.retry_after_secs {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(secs));
        }
        response
    }
}

impl From<OverLimit> for Refused {
    /// Where no session exists, or where its answer cannot be a JSON-RPC error.
    fn from(over: OverLimit) -> Self {
        Self {
            rejection: over.rejection(),
            retry_after_secs: Some(over.retry_after_secs()),
            headers: Some(Box::new(Headers { rate_limit: over.headers(), ..Headers::default() })),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::Refused, "")
        }
        .because("limits")
    }
}

impl From<Rejection> for Refused {
    fn from(rejection: Rejection) -> Self {
        let status = match rejection.code {
            ErrorCode::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
            ErrorCode::SessionNotFound => StatusCode::NOT_FOUND,
            ErrorCode::ParseError
            | ErrorCode::InvalidRequest
            | ErrorCode::MethodNotFound
            | ErrorCode::InvalidParams
            | ErrorCode::HeaderMismatch
            | ErrorCode::Refused => StatusCode::BAD_REQUEST,
        };
        Self { rejection, ..Self::new(status, ErrorCode::Refused, "") }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let (status, code) = match &refusal {
            Refusal::Rejected(rejection) => return rejection.clone().into(),
            // SES-06: the only status after which clients create a new session.
            Refusal::UnknownSession => (StatusCode::NOT_FOUND, ErrorCode::SessionNotFound),
            // SSE-10.
            Refusal::UnknownEvent => (StatusCode::BAD_REQUEST, ErrorCode::InvalidRequest),
            // The only answer after which every client stops reconnecting without reporting an
            // error.
            Refusal::NothingMore => (StatusCode::METHOD_NOT_ALLOWED, ErrorCode::Refused),
            Refusal::TooManySessions => (StatusCode::TOO_MANY_REQUESTS, ErrorCode::Refused),
            Refusal::Busy | Refusal::Stopping | Refusal::Unavailable | Refusal::Moved => {
                (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Refused)
            }
        };
        let reason = match &refusal {
            Refusal::Rejected(_) | Refusal::NothingMore => None,
            Refusal::UnknownSession => Some("unknown_session"),
            Refusal::UnknownEvent => Some("unknown_event"),
            Refusal::TooManySessions => Some("sessions"),
            Refusal::Busy | Refusal::Stopping | Refusal::Unavailable | Refusal::Moved => {
                Some("unavailable")
            }
        };
        let is_last = matches!(refusal, Refusal::NothingMore);
        let headers = if is_last { Headers::allow("POST, DELETE") } else { None };
        let retry =
            matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let retry_after_secs = retry.then_some(RETRY_AFTER_SECS);
        let refused = Self::new(status, code, refusal.to_string());
        let refused = Self { headers, retry_after_secs, ..refused };
        match reason {
            Some(reason) => refused.because(reason),
            None => refused,
        }
    }
}

impl From<Uncollected> for Refused {
    fn from(uncollected: Uncollected) -> Self {
        match uncollected {
            // POST-19.
            Uncollected::TooLarge { setting, bytes_max } => Self::invalid(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!(
                    "the body is longer than {bytes_max} bytes ({setting}); send less, or raise it"
                ),
            ),
            Uncollected::TooSlow { setting } => Self::invalid(
                StatusCode::REQUEST_TIMEOUT,
                format!("the body took too long to arrive ({setting}); send it faster"),
            ),
            Uncollected::Cut => Self::invalid(
                StatusCode::REQUEST_TIMEOUT,
                "the body arrived too slowly while the tenant had no memory left for bodies; send \
                 it faster",
            ),
            Uncollected::TooMany => Self {
                retry_after_secs: Some(RETRY_AFTER_SECS),
                ..Self::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    ErrorCode::Refused,
                    "the node is receiving as much for the tenant as it may; try again later",
                )
            },
            Uncollected::Broken => Self::new(
                StatusCode::BAD_REQUEST,
                ErrorCode::ParseError,
                "the body ended before it was complete",
            ),
        }
    }
}

impl From<Fault<'_>> for Refused {
    fn from(fault: Fault<'_>) -> Self {
        match fault {
            Fault::TooLarge => Self::invalid(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "the headers are longer than they may be together",
            ),
            Fault::Twice(name) => Self::invalid(
                StatusCode::BAD_REQUEST,
                format!("the header `{name}` was sent twice; send it once"),
            ),
            Fault::NotText(name) => Self::invalid(
                StatusCode::BAD_REQUEST,
                format!("the header `{name}` holds more than visible ASCII"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(refusal: Refusal, status: u16, code: i32, retry: bool) {
        let refused = Refused::from(refusal);
        assert_eq!(refused.rejection.code.number(), code);
        let response = refused.into_response();
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(response.headers().contains_key(header::RETRY_AFTER), retry);
        assert_eq!(response.headers().contains_key(header::ALLOW), status == 405);
    }

    #[test]
    fn each_refusal_has_its_status_and_code() {
        for code in [ErrorCode::ParseError, ErrorCode::InvalidRequest, ErrorCode::InvalidParams] {
            check(Refusal::Rejected(Rejection::new(code, "no")), 400, code.number(), false);
        }
        let mismatch = Rejection::new(ErrorCode::HeaderMismatch, "no");
        check(Refusal::Rejected(mismatch), 400, -32001, false);
        check(Refusal::UnknownSession, 404, -32001, false);
        check(Refusal::UnknownEvent, 400, -32600, false);
        check(Refusal::NothingMore, 405, -32000, false);
        check(Refusal::TooManySessions, 429, -32000, true);
        check(Refusal::Busy, 503, -32000, true);
        check(Refusal::Stopping, 503, -32000, true);
        check(Refusal::Unavailable, 503, -32000, true);
    }
}

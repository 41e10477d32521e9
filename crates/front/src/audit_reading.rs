//! What audit records say of principals, messages and responses. It is read here, and decides nothing.

use std::borrow::Cow;

use audit::{FieldValue, Origin, RequestName};
use protocol::glance::{self, Kind};
use protocol::{About, Message, Method, Notification, Request, RequestId, payload};
use telemetry::{Outcome, TraceId};
use tenants::{Principal, Tenant};

/// Longer parameters are not searched for the fields that settings name: the thread serves others.
const SEARCHED_BYTES_MAX: usize = 256 << 10;

/// What a field says of parameters that are longer.
const NOT_SEARCHED: &str = "not read: the parameters are longer than 256 KiB";

/// Why the sender of a request is not known. A number, so that a refusal stays small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignInProblem {
    NoCredential,
    UnknownScheme,
    Malformed,
    UnknownKey,
    ExpiredKey,
    ExpiredToken,
    TokenOfOtherAudience,
    TokenOfOtherIssuer,
    WrongSignature,
    InvalidToken,
    InsufficientScope,
    Revoked,
    IssuerUnavailable,
}

impl SignInProblem {
    /// The reason in records.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NoCredential => "no_credential",
            Self::UnknownScheme => "unknown_scheme",
            Self::Malformed => "malformed",
            Self::UnknownKey => "unknown_key",
            Self::ExpiredKey => "expired_key",
            Self::ExpiredToken => "expired_token",
            Self::TokenOfOtherAudience => "token_of_other_audience",
            Self::TokenOfOtherIssuer => "token_of_other_issuer",
            Self::WrongSignature => "wrong_signature",
            Self::InvalidToken => "invalid_token",
            Self::InsufficientScope => "insufficient_scope",
            Self::Revoked => "revoked",
            Self::IssuerUnavailable => "issuer_unavailable",
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RefusalCause {
    /// The sender is not known, or what it presented does not count any more: then the client that it was
    /// made for, if that is known.
    SignIn(SignInProblem, Option<Principal>),
    /// The sender is known, and this is the reason in records.
    Reason(&'static str),
}

/// The kind of a principal's name, its issuer, and the name. `identity` and `tenants` make these names.
pub(crate) fn who(name: &str) -> Origin<'_> {
    for (prefix, kind) in [("sub:", "subject"), ("client:", "client")] {
        // No URL has a space.
        if let Some(rest) = name.strip_prefix(prefix)
            && let Some((issuer, subject)) = rest.split_once(' ')
        {
            let (issuer, subject) = (Some(issuer), Some(subject));
            return Origin { principal: Some(kind), issuer, subject, ..Origin::default() };
        }
    }
    let (principal, subject) = match name.strip_prefix("key:") {
        Some(subject) => (Some("key"), Some(subject)),
        None => (None, Some(name).filter(|name| !name.is_empty())),
    };
    Origin { principal, subject, ..Origin::default() }
}

/// The trace in a `traceparent` (W3C Trace Context): the second of its parts.
pub(crate) fn trace_id(traceparent: &str) -> Option<&str> {
    let id = traceparent.get(3..35)?;
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_formed = traceparent.len() >= 55 && traceparent.as_bytes()[2] == b'-';
    (is_formed && id.bytes().all(is_hex)).then_some(id)
}

/// The trace that a message names. Most name none, which takes a search of their parameters.
pub(crate) fn trace_of(message: &Message) -> Option<TraceId> {
    let parent = match message {
        Message::Request(request) => request.trace_parent(),
        Message::Notification(notification) => notification.trace_parent(),
        Message::Response(_) => None,
    };
    parent.map(|(parent, _)| TraceId(parent.trace))
}

/// The id of a request as records have it.
pub(crate) fn request_name(id: &RequestId) -> RequestName<'_> {
    match id {
        RequestId::Number(number) => RequestName::Number(*number),
        RequestId::String(text) => RequestName::Text(text),
    }
}

/// The method that a message names, what it is about, and the id if it is a request.
pub(crate) fn named(message: &Message) -> (&str, About<'_>, Option<RequestName<'_>>) {
    match message {
        Message::Request(request) => {
            (request.method.as_str(), About::of(request), Some(request_name(&request.id)))
        }
        Message::Notification(notification) => {
            (notification.method.as_str(), About::default(), None)
        }
        Message::Response(_) => ("response", About::default(), None),
    }
}

/// The arguments that the tenant's settings name. What is not there is left out.
pub(crate) fn fields<'a>(
    tenant: &'a Tenant,
    request: &Request,
    params: &'a [u8],
) -> Vec<(&'a str, FieldValue<'a>)> {
    if !matches!(request.method, Method::ToolsCall | Method::PromptsGet) {
        return Vec::new();
    }
    let named = tenant.audited_fields.iter();
    if params.len() > SEARCHED_BYTES_MAX {
        let value = || FieldValue::Text(NOT_SEARCHED.into());
        return named.map(|field| (&*field.path, value())).collect();
    }
    let value = |json: &'a str| {
        let text = json.starts_with('"').then(|| serde_json::from_str::<Cow<'a, str>>(json));
        FieldValue::of_json(json, text.and_then(Result::ok))
    };
    let found = named.filter_map(|field| {
        let json = protocol::member_at(params, &field.members)?;
        Some((&*field.path, value(json)))
    });
    found.collect()
}

/// The request that a final response answers, how, and the code of its error.
pub(crate) fn final_response(message: &[u8]) -> Option<(RequestId, Outcome, Option<i32>)> {
    let (outcome, code) = match glance::kind_of(message)? {
        Kind::Call => return None,
        Kind::Error => (Outcome::Error, glance::error_code(message)),
        Kind::Result if glance::is_tool_error(message) => (Outcome::ToolError, None),
        Kind::Result => (Outcome::Result, None),
    };
    let id = protocol::member_at(message, &["id"])?;
    Some((RequestId::from_json(id)?, outcome, code))
}

/// The request that a notification cancels.
pub(crate) fn cancelled_id(notification: &Notification) -> Option<RequestId> {
    let params = notification.params().filter(|_| notification.method == Method::Cancelled)?;
    payload::cancelled_request_id(&params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_is_a_key_a_subject_or_a_client() {
        let check = |name: &str, kind, issuer, subject| {
            let origin = who(name);
            let found = (origin.principal, origin.issuer, origin.subject);
            assert_eq!(found, (kind, issuer, subject), "{name}");
        };
        check("", None, None, None);
        check("key:ada", Some("key"), None, Some("ada"));
        let issuer = Some("https://i.example");
        check("sub:https://i.example ada l", Some("subject"), issuer, Some("ada l"));
        check("client:https://i.example app", Some("client"), issuer, Some("app"));
    }

    #[test]
    fn only_a_traceparent_has_a_trace() {
        let id = "0af7651916cd43dd8448eb211c80319c";
        assert_eq!(trace_id(&format!("00-{id}-b7ad6b7169203331-01")), Some(id));
        for wrong in ["", "00", id, &format!("00-{}-b7ad6b7169203331-01", "x".repeat(32))] {
            assert_eq!(trace_id(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_final_response_names_its_request() {
        let found = |text: &str| final_response(text.as_bytes());
        let id = RequestId::from(7);
        assert_eq!(
            found(r#"{"jsonrpc":"2.0","id":7,"result":{}}"#),
            Some((id.clone(), Outcome::Result, None))
        );
        assert_eq!(
            found(r#"{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":""}}"#),
            Some((id, Outcome::Error, Some(-1)))
        );
        assert_eq!(found(r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#), None);
    }
}

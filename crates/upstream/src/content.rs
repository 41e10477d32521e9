//! What a response has: its kind of content, and the messages in it.

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE};
use protocol::{Body, Limits, Message, Response};

use crate::Failure;

/// The kind of content of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Json,
    Events,
    Other,
}

impl Content {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        // No encoding is asked for, and none is decoded: a small body could become a large one.
        let encoding = headers.get(CONTENT_ENCODING).map(|encoding| encoding.as_bytes());
        if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"identity")) {
            return Self::Other;
        }
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
        match kind {
            Some(kind) if kind.eq_ignore_ascii_case("application/json") => Self::Json,
            Some(kind) if kind.eq_ignore_ascii_case("text/event-stream") => Self::Events,
            _ => Self::Other,
        }
    }
}

/// The messages of a body: one, or those of a batch. Members of a batch that are no messages are left
/// out.
pub(crate) fn messages(body: Bytes) -> Result<Vec<Message>, Failure> {
    match protocol::parse(body, &Limits::default()) {
        Ok(Body::One(message)) => Ok(vec![message]),
        Ok(Body::Batch(members)) => Ok(members.into_iter().flatten().collect()),
        Err(_) => Err(Failure::NotAMessage),
    }
}

/// The JSON-RPC error in the body of a refusal.
pub(crate) fn error_in(body: Bytes) -> Option<Response> {
    match protocol::parse(body, &Limits::default()) {
        Ok(Body::One(Message::Response(response))) if !response.is_result() => Some(response),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_content_has_parameters_and_any_case() {
        let of = |kind: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, kind.parse().unwrap());
            Content::of(&headers)
        };
        assert_eq!(of("Application/JSON; charset=utf-8"), Content::Json);
        assert_eq!(of("text/event-stream;charset=UTF-8"), Content::Events);
        assert_eq!(of("text/html"), Content::Other);
        assert_eq!(of("application/jsonp"), Content::Other);
        assert_eq!(Content::of(&HeaderMap::new()), Content::Other);
    }

    #[test]
    fn a_compressed_body_is_not_read() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, "application/json".parse().unwrap());
        headers.insert(CONTENT_ENCODING, "gzip".parse().unwrap());
        assert_eq!(Content::of(&headers), Content::Other);
    }
}

//! Errors of servers as clients and operators read them: each names its server.

use bytes::Bytes;
use protocol::{Response, URL_ELICITATION_REQUIRED};
use serde::Deserialize;

/// Most bytes of a server's own text in the reason why it is not available.
const TEXT_BYTES_MAX: usize = 500;

/// Longest error of a server that is kept whole.
const ERROR_BYTES_MAX: usize = 4 << 10;

/// Why a server is not available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// For the log as well: no text of a server.
    pub(crate) reason: Box<str>,
    /// What the server itself says, for clients only: it may have anything in it.
    text: Option<Box<str>>,
    /// The whole error to `initialize`, if it has the user open a page first.
    page_required: Option<Bytes>,
}

/// An error of JSON-RPC, as far as it is read.
#[derive(Deserialize)]
struct Error {
    code: i64,
    message: String,
}

impl Error {
    fn of(response: &Response) -> Option<Self> {
        serde_json::from_slice(&response.outcome().err()?).ok()
    }
}

impl Failure {
    /// A reason that is known without the server.
    pub(crate) fn new(reason: impl Into<Box<str>>) -> Self {
        Self { reason: reason.into(), text: None, page_required: None }
    }

    /// That of a server that did not answer `initialize` with a result.
    pub(crate) fn of_initialize(response: &Response) -> Self {
        match Error::of(response) {
            Some(error) if response.is_failure() => Self::new(error.message),
            Some(Error { code, message }) => Self {
                reason: format!("it answered `initialize` with the error {code}").into(),
                text: Some(shown(&message)),
                page_required: response
                    .outcome()
                    .err()
                    .filter(|error| error.len() <= ERROR_BYTES_MAX)
                    .filter(|_| code == i64::from(URL_ELICITATION_REQUIRED)),
            },
            None => Self::new("its answer to `initialize` is invalid"),
        }
    }

    /// The error that has the user open a page first, if the server answered `initialize` with one.
    pub(crate) fn page_required(&self) -> Option<&Bytes> {
        self.page_required.as_ref()
    }

    /// The reason, for clients.
    pub(crate) fn for_clients(&self) -> Box<str> {
        match &self.text {
            Some(text) => format!("{}: \"{text}\"", self.reason).into(),
            None => self.reason.clone(),
        }
    }
}

/// A response to a request of the client with the name of the server, if this program made it: the errors of
/// servers stay as they are.
pub(crate) fn with_server(response: &Response, server: &str) -> Response {
    let error = Error::of(response).filter(|_| response.is_failure());
    match (error, &response.id) {
        (Some(Error { code, message }), Some(id)) => {
            let code = i32::try_from(code).unwrap_or_default();
            let reason = format!("the server `{server}` did not answer: {message}");
            Response::failure(id.clone(), code, &reason)
        }
        _ => response.clone(),
    }
}

/// The beginning of a text of a server, in one line.
fn shown(text: &str) -> Box<str> {
    let cut = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    let mut shown: String =
        cut.chars().map(|c| if c.is_control() || c == '"' { ' ' } else { c }).collect();
    if cut.len() < text.len() {
        shown.push('…');
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clients_get_the_text_of_a_server() {
        let message = format!("token \"abc\" is\nwrong {}", "ä".repeat(400));
        let response = Response::error(Some(1.into()), -32_603, &message, None);
        let failure = Failure::of_initialize(&response);
        assert_eq!(&*failure.reason, "it answered `initialize` with the error -32603");
        let text = failure.for_clients();
        assert!(
            text.contains("-32603: \"token  abc  is wrong ä") && text.ends_with("…\""),
            "{text}"
        );
        assert!(text.len() < 600);
    }

    #[test]
    fn a_reason_of_this_program_is_for_everyone_and_gets_the_name() {
        let response =
            Response::failure(1.into(), -32_603, "the upstream server did not answer in time");
        let failure = Failure::of_initialize(&response);
        assert_eq!(&*failure.reason, "the upstream server did not answer in time");
        assert_eq!(failure.for_clients(), failure.reason);
        let named = with_server(&response, "two");
        let text = "the server `two` did not answer: the upstream server did not answer in time";
        assert_eq!(named, Response::failure(1.into(), -32_603, text));
        let own = Response::error(Some(1.into()), -32_042, "sign in", Some(b"{\"a\": 1}"));
        assert_eq!(with_server(&own, "two"), own);
    }
}

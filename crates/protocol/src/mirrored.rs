//! The headers of DRAFT-2026-v1 that mirror the body: `Mcp-Method`, `Mcp-Name`, `Mcp-Param-*`.
//!
//! An intermediary may act on these headers while Roundhouse acts on the body, so both must have
//! the same values (HDR-04). Checked only for revisions with
//! [`Revision::has_mirrored_headers`](crate::Revision::has_mirrored_headers) (HDR-21).

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::decimal::same_number;
use crate::header_params::HeaderParams;
use crate::raw::{Object, floor_char_boundary};
use crate::{ErrorCode, Message, Method, Rejection, Request, RequestId};

const METHOD: &str = "Mcp-Method";
const NAME: &str = "Mcp-Name";
const PARAM: &str = "Mcp-Param-";

/// What surrounds a value in base64.
const BASE64: (&str, &str) = ("=?base64?", "?=");

/// Maximum length of a name or method in an error message, in bytes; a longer one is truncated.
const QUOTED_MAX: usize = 128;

/// Most bytes of the headers that a client sends with one message, names included: servers and proxies
/// accept heads of 8 to 16 KiB. A message with more is not sent.
const SENT_BYTES_MAX: usize = 8 << 10;

/// The values that a message mirrors in headers are too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the values that the request mirrors in headers have more than {SENT_BYTES_MAX} bytes")]
pub struct HeadersTooLong;

/// The mirrored headers of one POST. The HTTP server bounds their number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirrored {
    /// Names in lower case, and values without surrounding white space. A header with two
    /// different values has two entries, and fails the check.
    headers: Vec<(Box<str>, Box<[u8]>)>,
}

impl Mirrored {
    /// Selects the mirrored headers among all headers, whose names may be in any case.
    /// `None` if there are none.
    pub fn from_headers<'a>(
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> Option<Box<Self>> {
        let mut mirrored = Self::default();
        for (name, value) in headers {
            // This runs for every header of every POST, and most are skipped at once.
            if name.get(..4).is_none_or(|start| !start.eq_ignore_ascii_case("mcp-")) {
                continue;
            }
            let is_param =
                name.get(..PARAM.len()).is_some_and(|start| start.eq_ignore_ascii_case(PARAM));
            let is_mirrored =
                is_param || [METHOD, NAME].iter().any(|n| n.eq_ignore_ascii_case(name));
            if !is_mirrored {
                continue;
            }
            let header = (name.to_ascii_lowercase().into(), trim(value).into());
            if !mirrored.headers.contains(&header) {
                mirrored.headers.push(header);
            }
        }
        (!mirrored.headers.is_empty()).then(|| Box::new(mirrored))
    }

    /// The headers with which a client sends a message (HDR-01, HDR-02, HDR-10). `annotations` are those of
    /// the called tool. Responses have none. An annotated argument has none that is missing, null, or neither
    /// number, string nor boolean, nor one whose annotation cannot be a header's name.
    pub fn of(
        message: &Message,
        annotations: Option<&HeaderParams>,
    ) -> Result<Self, HeadersTooLong> {
        let mut sent = Self::default();
        match message {
            Message::Request(request) => {
                sent.add(METHOD, request.method.as_str());
                if let Some(key) = name_key(&request.method) {
                    let params = request.params().unwrap_or_default();
                    let params = Object::read(&params).unwrap_or_default();
                    params.read_as::<String>(key).inspect(|name| sent.add(NAME, name));
                    let annotations = annotations.filter(|_| request.method == Method::ToolsCall);
                    sent.add_params(&params, annotations);
                }
            }
            Message::Notification(notification) => sent.add(METHOD, notification.method.as_str()),
            Message::Response(_) => {}
        }
        let bytes = sent.headers.iter().map(|(name, value)| name.len() + value.len());
        if bytes.sum::<usize>() > SENT_BYTES_MAX { Err(HeadersTooLong) } else { Ok(sent) }
    }

    fn add_params(&mut self, params: &Object<'_>, annotations: Option<&HeaderParams>) {
        let Some(annotations) = annotations.filter(|annotations| !annotations.is_empty()) else {
            return;
        };
        let arguments = params.object("arguments").unwrap_or_default();
        for annotated in annotations.iter().filter(|annotated| annotated.is_token()) {
            let Some(argument) = arguments.get(&annotated.argument) else { continue };
            let name = format!("{PARAM}{}", annotated.header);
            match argument.as_bytes() {
                [b'"', ..] => {
                    if let Ok(text) = serde_json::from_str::<String>(argument) {
                        self.add(&name, &text);
                    }
                }
                [b't' | b'f' | b'-' | b'0'..=b'9', ..] => self.add(&name, argument),
                _ => {}
            }
        }
    }

    fn add(&mut self, name: &str, value: &str) {
        let value = encoded(value).as_bytes().into();
        self.headers.push((name.to_ascii_lowercase().into(), value));
    }

    /// The headers, in the form that [`Mirrored::from_headers`] takes on another node.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.headers.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Checks that the headers of a POST have the values of its message. `annotations` are those
    /// of the called tool, if Roundhouse has them.
    pub fn check(
        given: Option<&Self>,
        message: &Message,
        annotations: Option<&HeaderParams>,
    ) -> Result<(), Rejection> {
        let none = Self::default();
        let given = given.unwrap_or(&none);
        match message {
            Message::Request(request) => given
                .check_method(&request.method)
                .and_then(|()| given.check_name(request))
                .and_then(|()| given.check_params(request, annotations))
                .map_err(|problem| problem.rejection(Some(request.id.clone()))),
            Message::Notification(notification) => {
                given.check_method(&notification.method).map_err(|problem| problem.rejection(None))
            }
            Message::Response(_) => Ok(()),
        }
    }

    /// HDR-01. Values are compared in their case (HDR-06).
    fn check_method(&self, method: &Method) -> Result<(), Problem> {
        let value = self.value(METHOD)?.ok_or_else(|| Problem::missing(METHOD))?;
        if value == method.as_str() {
            return Ok(());
        }
        Err(Problem::differs(METHOD, value, Some(method.as_str())))
    }

    /// HDR-02.
    fn check_name(&self, request: &Request) -> Result<(), Problem> {
        let Some(key) = name_key(&request.method) else { return Ok(()) };
        let params = request.params().unwrap_or_default();
        let params = Object::read(&params).unwrap_or_default();
        if params.count(key) > 1 {
            return Err(Problem(format!("`params.{key}` occurs twice; send it once")));
        }
        let name: Option<String> = params.read_as(key);
        match (self.value(NAME)?, name) {
            // The message has no name to mirror; the tenant's server reports the error.
            (None, None) => Ok(()),
            (None, Some(_)) => Err(Problem::missing(NAME)),
            (Some(value), Some(name)) if value == name => Ok(()),
            // The draft defines base64 only for parameters, its successor for names too (HDR-07).
            (Some(value), Some(name)) if decoded(value).is_some_and(|text| text == name) => Ok(()),
            (Some(value), name) => Err(Problem::differs(NAME, value, name.as_deref())),
        }
    }

    /// HDR-10. Headers without an annotation are ignored (HDR-18).
    fn check_params(
        &self,
        request: &Request,
        annotations: Option<&HeaderParams>,
    ) -> Result<(), Problem> {
        let Some(annotations) = annotations
            .filter(|annotations| request.method == Method::ToolsCall && !annotations.is_empty())
        else {
            return Ok(());
        };
        let params = request.params().unwrap_or_default();
        let params = Object::read(&params).unwrap_or_default();
        if params.count("arguments") > 1 {
            return Err(Problem("`params.arguments` occurs twice; send it once".into()));
        }
        let arguments = params.object("arguments").unwrap_or_default();
        for annotated in annotations.iter() {
            let header = format!("{PARAM}{}", annotated.header);
            let argument =
                arguments.get(&annotated.argument).filter(|argument| *argument != "null");
            if arguments.count(&annotated.argument) > 1 {
                return Err(Problem(format!("the argument of {header} occurs twice")));
            }
            match (self.value(&header)?, argument) {
                (None, None) => {}
                (None, Some(_)) => return Err(Problem::missing(&header)),
                (Some(_), None) => {
                    return Err(Problem(format!(
                        "{header} was sent, but the body has no value for it; leave it out"
                    )));
                }
                (Some(value), Some(argument)) => {
                    let value = decoded(value).ok_or_else(|| {
                        Problem(format!("{header} is not valid base64 of UTF-8 text"))
                    })?;
                    if !mirrors(&value, argument) {
                        return Err(Problem(format!("{header} differs from the body's value")));
                    }
                }
            }
        }
        Ok(())
    }

    /// The one value of a header.
    fn value(&self, header: &str) -> Result<Option<&str>, Problem> {
        let mut values = self.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(header));
        let Some((_, value)) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(Problem(format!("{header} was sent twice with different values")));
        }
        let clean = value.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
        match std::str::from_utf8(value) {
            Ok(value) if clean => Ok(Some(value)),
            _ => Err(Problem(format!("{header} has characters that are not visible ASCII"))),
        }
    }
}

/// An error in the headers, for the client's developer.
struct Problem(String);

impl Problem {
    fn missing(header: &str) -> Self {
        Self(format!("{header} is missing; it must mirror the body"))
    }

    fn differs(header: &str, value: &str, body: Option<&str>) -> Self {
        let body = match body {
            Some(body) => format!("does not match body value '{}'", shortened(body)),
            None => "has nothing in the body to match".to_owned(),
        };
        Self(format!("{header} header value '{}' {body}", shortened(value)))
    }

    fn rejection(self, id: Option<RequestId>) -> Rejection {
        Rejection::new(ErrorCode::HeaderMismatch, format!("header mismatch: {}", self.0)).of(id)
    }
}

/// The parameter that `Mcp-Name` mirrors.
fn name_key(method: &Method) -> Option<&'static str> {
    match method {
        Method::ToolsCall | Method::PromptsGet => Some("name"),
        Method::ResourcesRead => Some("uri"),
        _ => None,
    }
}

fn shortened(text: &str) -> &str {
    &text[..floor_char_boundary(text, QUOTED_MAX)]
}

/// Removes the optional white space around a header's value (RFC 9110, 5.5).
fn trim(value: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().position(|byte| !is_space(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !is_space(byte)).map_or(start, |last| last + 1);
    &value[start..end]
}

/// The value of a header with this text: the text itself, or its base64 if it has characters other than
/// visible ASCII and inner spaces, or if it would be read as base64.
fn encoded(text: &str) -> Cow<'_, str> {
    let is_clean = text.bytes().all(|byte| matches!(byte, b' '..=b'~')) && text.trim() == text;
    let is_read_as_base64 = text.starts_with(BASE64.0) && text.ends_with(BASE64.1);
    match is_clean && !is_read_as_base64 {
        true => Cow::Borrowed(text),
        false => Cow::Owned(format!("{}{}{}", BASE64.0, STANDARD.encode(text), BASE64.1)),
    }
}

/// The text of a header's value: the decoded base64 between `=?base64?` and `?=`, or the value
/// itself if it does not have both (HDR-09). `None` if the base64 is invalid.
fn decoded(value: &str) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix(BASE64.0).and_then(|rest| rest.strip_suffix(BASE64.1));
    let Some(inner) = inner else { return Some(value.into()) };
    let bytes = STANDARD.decode(inner).ok()?;
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Whether `value` is the string form of the argument, which is given as JSON text.
fn mirrors(value: &str, argument: &str) -> bool {
    match argument.as_bytes() {
        [b'"', ..] => serde_json::from_str::<String>(argument).is_ok_and(|text| text == value),
        [b't' | b'f', ..] => value == argument,
        [b'-' | b'0'..=b'9', ..] => value == argument || same_number(value, argument),
        _ => false,
    }
}

#[cfg(test)]
mod tests;

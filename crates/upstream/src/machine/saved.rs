//! What another machine needs to carry a session on: the state of a confirmed session, encoded.

use bytes::Bytes;
use protocol::{InitializeResult, Position, RequestId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::ids::CallId;
use crate::exchange::HeaderText;

/// The format that this version writes, and the only one that it reads.
const FORMAT: u32 = 1;

/// Longest state, in bytes. A server whose capabilities are longer is greeted again by each owner.
const STATE_BYTES_MAX: usize = 4_096;

#[derive(Serialize, Deserialize)]
struct Encoded {
    format: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revision: Option<String>,
    /// The parts of the server's response to `initialize` that a session reads later.
    result: Value,
}

/// The state of a confirmed session.
#[derive(Debug, PartialEq)]
pub(super) struct Saved {
    pub(super) session: Option<HeaderText>,
    pub(super) revision: Option<HeaderText>,
    pub(super) result: Bytes,
}

impl Saved {
    /// Encodes the state of a session whose server answered `initialize` with this result. `None` if it
    /// is too long.
    pub(super) fn encode(
        session: Option<&HeaderText>,
        revision: Option<&HeaderText>,
        result: &[u8],
    ) -> Option<Bytes> {
        let text = |text: &HeaderText| text.text().map(str::to_owned);
        let whole: Value = serde_json::from_slice(result).ok()?;
        let result = serde_json::json!({
            "protocolVersion": whole.get("protocolVersion")?,
            "capabilities": whole.get("capabilities")?,
            "serverInfo": {
                "name": whole.get("serverInfo")?.get("name")?,
                "version": whole.get("serverInfo")?.get("version")?,
            },
        });
        let (session, revision) = (session.map(text), revision.map(text));
        // Both are of visible characters.
        let (session, revision) = (session.flatten(), revision.flatten());
        let state = Encoded { format: FORMAT, session, revision, result };
        let state = serde_json::to_vec(&state).ok()?;
        (state.len() <= STATE_BYTES_MAX).then(|| state.into())
    }

    /// Reads a state; `None` for any that this version does not write.
    pub(super) fn read(state: &[u8]) -> Option<Self> {
        let state: Encoded = serde_json::from_slice(state).ok()?;
        let text = |text: Option<String>| match text {
            Some(text) => HeaderText::visible(text.as_bytes()).map(Some),
            None => Some(None),
        };
        let result = Bytes::from(state.result.to_string());
        InitializeResult::read(&result).ok()?;
        let (session, revision) = (text(state.session)?, text(state.revision)?);
        (state.format == FORMAT).then_some(Self { session, revision, result })
    }
}

/// The position after this event, of the stream of messages that belong to no request, or of a request's;
/// `None` for one that is too long, or that no text can have. Calls end with their session, so only the other
/// stream says of which session it is.
pub(super) fn position(
    session: Option<&HeaderText>,
    call: Option<&CallId>,
    id: &HeaderText,
) -> Option<Position> {
    let id = id.text()?;
    let (stream, at) = match call {
        Some(CallId { own, wire, progress, .. }) if own != wire => {
            let stream = match progress {
                None => wire.to_json().to_string(),
                Some(_) => serde_json::to_string(&(wire, progress)).ok()?,
            };
            (stream, id.to_owned())
        }
        Some(_) => (String::new(), id.to_owned()),
        None => (String::new(), format!("{}{id}", tag(session))),
    };
    let position = Position { stream: stream.into(), at: at.into() };
    (position.bytes() <= Position::BYTES_MAX).then_some(position)
}

/// The last event that was read of the stream of messages that belong to no request, if it was in this
/// session: in another one its id may be that of another event.
pub(super) fn cursor(session: Option<&HeaderText>, position: &Position) -> Option<HeaderText> {
    HeaderText::parse(position.at.strip_prefix(&tag(session))?.as_bytes())
}

/// Tells the sessions with a server apart: part of a digest, which is no secret.
fn tag(session: Option<&HeaderText>) -> String {
    let digest = Sha256::digest(session.and_then(HeaderText::text).unwrap_or_default());
    format!("{:08x} ", u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]))
}

/// The ids of a request with this position, and the last event of its stream that was read.
pub(super) fn resumed(own: RequestId, position: &Position) -> Option<(CallId, HeaderText)> {
    let (wire, progress) = match &*position.stream {
        "" => (own.clone(), None),
        stream if stream.starts_with('[') => serde_json::from_str(stream).ok()?,
        wire => (serde_json::from_str(wire).ok()?, None),
    };
    // The tokens of clients are not saved.
    Some((CallId { own, wire, progress, tokens: None }, HeaderText::parse(position.at.as_bytes())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_reads_back_without_what_no_session_reads() {
        let result = br#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},
            "serverInfo":{"name":"a","version":"1","title":"A"},"instructions":"be good"}"#;
        let text = |text: &str| HeaderText::parse(text.as_bytes());
        let (session, revision) = (text("s1"), text("2025-11-25"));
        let state = Saved::encode(session.as_ref(), revision.as_ref(), result).unwrap();
        let read = Saved::read(&state).unwrap();
        assert_eq!((&read.session, &read.revision), (&session, &revision));
        let short = String::from_utf8(read.result.to_vec()).unwrap();
        assert!(short.contains("tools") && !short.contains("good"), "{short}");
        let later =
            String::from_utf8(state.to_vec()).unwrap().replace("\"format\":1", "\"format\":2");
        assert_eq!(Saved::read(later.as_bytes()), None);
        let long = format!(
            r#"{{"protocolVersion":"1","capabilities":{{"experimental":"{}"}},
                "serverInfo":{{"name":"a","version":"1"}}}}"#,
            "x".repeat(STATE_BYTES_MAX)
        );
        assert_eq!(Saved::encode(None, None, long.as_bytes()), None);
    }

    #[test]
    fn a_position_names_the_request_as_the_server_knows_it() {
        let own = RequestId::from(7);
        let id = HeaderText::parse(b"e 1").unwrap();
        for (wire, progress) in [
            (own.clone(), None),
            (RequestId::from("rh-1"), None),
            (RequestId::from("rh-1"), Some(RequestId::from("p"))),
            (RequestId::from("rh-1"), Some(RequestId::from(3))),
        ] {
            let call = CallId { own: own.clone(), wire, progress, tokens: None };
            let position = position(None, Some(&call), &id).unwrap();
            assert_eq!(resumed(own.clone(), &position), Some((call, id.clone())));
        }
        let long = HeaderText::parse(&[b'x'; Position::BYTES_MAX + 1]).unwrap();
        assert_eq!(position(None, None, &long), None);
    }

    #[test]
    fn an_event_of_another_session_is_not_continued_after() {
        let text = |text: &str| HeaderText::parse(text.as_bytes()).unwrap();
        let (first, second) = (text("s1"), text("s2"));
        let read = position(Some(&first), None, &text("e 1")).unwrap();
        assert_eq!(cursor(Some(&first), &read), Some(text("e 1")));
        assert_eq!(cursor(Some(&second), &read), None);
        assert_eq!(cursor(None, &read), None);
    }
}

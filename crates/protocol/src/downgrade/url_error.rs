//! The error that has a user open URLs, for clients that open none (ELI-01, ELI-05).

use bytes::Bytes;
use memchr::memmem::Finder;
use serde::Deserialize;

use crate::raw::{self, Needle, Object, may_hold, quoted};
use crate::{ErrorCode, URL_ELICITATION_REQUIRED};

/// Most URLs that a text gets, and how long it may become by them: a server may name very many.
const URLS_MAX: usize = 16;
const TEXT_BYTES_MAX: usize = 8 << 10;

/// Converts an error object for a client that cannot be asked to open URLs: an ordinary error whose text has them.
/// `None` if it is another error.
pub fn error_without_urls(error: &[u8]) -> Option<Bytes> {
    static CODE: Needle = Needle::new(|| Finder::new("-32042"));
    #[derive(Deserialize)]
    struct Elicitation {
        url: String,
    }
    if !may_hold(error, &CODE) {
        return None;
    }
    let object = Object::read(error)?;
    if object.read_as::<i32>("code")? != URL_ELICITATION_REQUIRED {
        return None;
    }
    let mut text = object.read_as::<String>("message").unwrap_or_default();
    let data = object.object("data");
    let elicitations = data.as_ref().and_then(|data| raw::elements(data.get("elicitations")?));
    for elicitation in elicitations.into_iter().flatten().take(URLS_MAX) {
        let Ok(Elicitation { url }) = serde_json::from_str(elicitation.get()) else { continue };
        let has_room = text.len() + url.len() <= TEXT_BYTES_MAX;
        if has_room && !text.contains(&url) {
            text.push_str(if text.is_empty() { "open " } else { ": open " });
            text.push_str(&url);
        }
    }
    let (code, text) = (ErrorCode::Refused.number().to_string(), quoted(&text));
    Some(raw::object([("code", code.as_str()), ("message", text.as_str())]).into())
}

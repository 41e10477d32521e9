//! Reads members of payloads, and replaces some.
//!
//! Each reader takes the JSON text of a message's `params`, and returns `None` for a member that
//! is absent or malformed. The caller decides what that means.

use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::raw::{self, Name, Object};
use crate::{ProgressToken, RequestId};

/// The severity of a log message by RFC 5424, in ascending order (LOG-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLevel {
    /// Detail for finding faults.
    Debug,
    /// Normal operation.
    Info,
    /// Normal but significant.
    Notice,
    /// A condition that may lead to an error.
    Warning,
    /// An error.
    Error,
    /// A component has failed.
    Critical,
    /// Action is required at once.
    Alert,
    /// The system is unusable.
    Emergency,
}

impl LogLevel {
    /// The names on the wire, in ascending order of severity.
    pub const NAMES: [&'static str; 8] =
        ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

    /// Every level, in ascending order of severity.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// Parses the name of a level.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == name)
    }

    /// The level's name on the wire.
    pub const fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// The mode of an elicitation (ELI-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElicitationMode {
    /// By a form in the client.
    Form,
    /// By a page that the client opens, or by a mode of a later revision.
    Url,
}

/// The level of `notifications/message` and of `logging/setLevel` (LOG-02).
pub fn log_level_of(params: &[u8]) -> Option<LogLevel> {
    LogLevel::named(&text(params, "level")?)
}

/// The id of the request that `notifications/cancelled` cancels (CAN-01). No request has an id
/// longer than [`RequestId::BYTES_MAX`].
pub fn cancelled_request_id(params: &[u8]) -> Option<RequestId> {
    let [id] = raw::pick(params, ["requestId"])?;
    serde_json::from_str(id.filter(|id| id.len() <= RequestId::BYTES_MAX)?).ok()
}

/// The parameters of `notifications/cancelled` with another request id, for the next hop (CAN-04).
pub fn with_cancelled_request_id(params: &[u8], id: &RequestId) -> Option<Bytes> {
    cancelled_request_id(params)?;
    raw::with_member(params, "requestId", &id.to_json())
}

/// The members of `notifications/progress`. They are deserialised in one pass, other than in the
/// functions below: progress is frequent, and this saves 5 % of a session's step. The last one of
/// duplicate members is used; all must have the right type.
#[derive(Default)]
struct ProgressParams {
    token: Option<ProgressToken>,
    progress: Option<f64>,
}

impl<'de> Deserialize<'de> for ProgressParams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = ProgressParams;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ProgressParams, A::Error> {
                let mut members = ProgressParams::default();
                while let Some(Name(name)) = map.next_key()? {
                    match &*name {
                        "progressToken" => members.token = Some(map.next_value()?),
                        "progress" => members.progress = Some(map.next_value()?),
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// The token and the progress of `notifications/progress` (PRG-01, PRG-02).
pub fn progress_of(params: &[u8]) -> Option<(ProgressToken, f64)> {
    let ProgressParams { token, progress } = serde_json::from_slice(params).ok()?;
    Some((token?, progress?))
}

/// The parameters of `notifications/progress` with another token, for the next hop (PRG-04).
pub fn with_progress_token(params: &[u8], token: &ProgressToken) -> Option<Bytes> {
    progress_of(params)?;
    raw::with_member(params, "progressToken", &token.to_json())
}

/// The URI of the resource of `resources/subscribe`, `resources/unsubscribe`, `resources/read` or
/// `notifications/resources/updated` (RES-06).
pub fn resource_uri_of(params: &[u8]) -> Option<String> {
    text(params, "uri")
}

/// The name of the tool or prompt that is called.
pub fn name_of(params: &[u8]) -> Option<String> {
    text(params, "name")
}

/// Parameters with another `name`.
pub fn with_name(params: &[u8], name: &str) -> Option<Bytes> {
    raw::with_member(params, "name", &raw::quoted(name))
}

/// Parameters of `completion/complete` with another name of the prompt.
pub fn with_reference_name(params: &[u8], name: &str) -> Option<Bytes> {
    let [reference] = raw::pick(params, ["ref"])?;
    let reference = raw::with_member(reference?.as_bytes(), "name", &raw::quoted(name))?;
    raw::with_member(params, "ref", std::str::from_utf8(&reference).ok()?)
}

/// Parameters of `notifications/message` whose logger has `name` before its own name.
pub fn with_logger_of(params: &[u8], name: &str) -> Option<Bytes> {
    let logger = match text(params, "logger") {
        Some(logger) => format!("{name}/{logger}"),
        None => name.to_owned(),
    };
    raw::with_member(params, "logger", &raw::quoted(&logger))
}

/// The URIs of at most so many resource links in the content of a tool's result. A search finds that
/// most results have none.
pub fn resource_links(result: &[u8], links_max: usize) -> Vec<String> {
    static RESOURCE_LINK: raw::Needle =
        raw::Needle::new(|| memchr::memmem::Finder::new("resource_link"));
    if RESOURCE_LINK.find(result).is_none() {
        return Vec::new();
    }
    let content = raw::pick(result, ["content"]).and_then(|[content]| raw::elements(content?));
    let links = content.into_iter().flatten().filter_map(|block| {
        let block = Object::read(block.get().as_bytes())?;
        let is_link = block.read_as::<String>("type")? == "resource_link";
        block.read_as::<String>("uri").filter(|_| is_link)
    });
    links.take(links_max).collect()
}

/// The cursor of a list request.
pub fn cursor_of(params: &[u8]) -> Option<String> {
    text(params, "cursor")
}

/// Whether `sampling/createMessage` has tools, or uses of tools in its messages (SMP-02). It
/// requires a client with [`sampling_tools`](crate::ClientCapabilities::sampling_tools).
pub fn sampling_uses_tools(params: &[u8]) -> bool {
    let uses = |params: Object<'_>| {
        params.declares("tools")
            || params.declares("toolChoice")
            || params.get("messages").and_then(raw::elements).is_some_and(|messages| {
                messages.iter().any(|message| message_uses_tools(message.get()))
            })
    };
    Object::read(params).is_some_and(uses)
}

fn message_uses_tools(message: &str) -> bool {
    let Some(message) = Object::read(message.as_bytes()) else { return false };
    let is_use = |block: &str| {
        let kind = Object::read(block.as_bytes()).and_then(|block| block.read_as::<String>("type"));
        matches!(kind.as_deref(), Some("tool_use" | "tool_result"))
    };
    match (message.get("content"), message.get("content").and_then(raw::elements)) {
        (_, Some(blocks)) => blocks.iter().any(|block| is_use(block.get())),
        (Some(block), None) => is_use(block),
        (None, None) => false,
    }
}

/// Whether `sampling/createMessage` includes the context of servers (SMP-02). It requires a client
/// with [`sampling_context`](crate::ClientCapabilities::sampling_context).
pub fn sampling_uses_context(params: &[u8]) -> bool {
    matches!(text(params, "includeContext").as_deref(), Some("thisServer" | "allServers"))
}

/// The mode of `elicitation/create` (ELI-01); by form if it has none.
pub fn elicitation_mode(params: &[u8]) -> ElicitationMode {
    match Object::read(params).and_then(|params| params.read_as::<String>("mode")).as_deref() {
        None | Some("form") => ElicitationMode::Form,
        Some(_) => ElicitationMode::Url,
    }
}

/// The `elicitationId` of a URL elicitation, or of the notification that it is complete (ELI-05,
/// ELI-06).
pub fn elicitation_id_of(params: &[u8]) -> Option<String> {
    text(params, "elicitationId")
}

fn text(params: &[u8], key: &str) -> Option<String> {
    let [text] = raw::pick(params, [key])?;
    serde_json::from_str(text?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_id_is_no_longer_than_an_id_may_be() {
        let named = |length: usize| format!(r#"{{"requestId":"{}"}}"#, "x".repeat(length));
        assert!(cancelled_request_id(named(1_022).as_bytes()).is_some());
        assert_eq!(cancelled_request_id(named(1_023).as_bytes()), None);
    }

    /// Payloads for which each reader returns `None`.
    const NONSENSE: [&[u8]; 8] =
        [b"", b"{", b"[]", b"7", b"null", b"{}", b"\xFF", br#"{"level":7,"uri":[],"mode":{}}"#];

    // holds: LOG-01
    #[test]
    fn levels_are_ordered_and_named_and_nothing_else_is_a_level() {
        assert!(LogLevel::ALL.is_sorted());
        for level in LogLevel::ALL {
            let params = format!(r#"{{"level":"{}","data":{{}}}}"#, level.as_str());
            assert_eq!(log_level_of(params.as_bytes()), Some(level));
        }
        for bad in [r#"{"level":"warn"}"#, r#"{"level":"DEBUG"}"#, r#"{"level":""}"#] {
            assert_eq!(log_level_of(bad.as_bytes()), None);
        }
        assert!(LogLevel::Error >= LogLevel::Warning);
    }

    #[test]
    fn a_cancellation_names_its_request_and_can_name_another() {
        let params = br#"{"reason":"bored", "requestId": 7}"#;
        assert_eq!(cancelled_request_id(params), Some(7.into()));
        let renamed = with_cancelled_request_id(params, &"x-1".into()).unwrap();
        assert_eq!(renamed, r#"{"reason":"bored", "requestId": "x-1"}"#);
        assert_eq!(cancelled_request_id(br#"{"requestId":null}"#), None);
        assert_eq!(with_cancelled_request_id(br#"{"reason":"x"}"#, &7.into()), None);
    }

    #[test]
    fn progress_is_a_token_of_either_type_and_a_number() {
        assert_eq!(progress_of(br#"{"progressToken":"t","progress":3}"#), Some(("t".into(), 3.0)));
        let params = br#"{"progressToken":7,"progress":0.5,"total":1,"message":"m"}"#;
        assert_eq!(progress_of(params), Some((7.into(), 0.5)));
        let renamed = with_progress_token(params, &"mine".into()).unwrap();
        assert_eq!(renamed, r#"{"progressToken":"mine","progress":0.5,"total":1,"message":"m"}"#);
        let twice = br#"{"progressToken":7,"progress":1,"progress":2,"progressT\u006fken":8}"#;
        assert_eq!(progress_of(twice), Some((8.into(), 2.0)));
        for bad in [r#"{"progressToken":7}"#, r#"{"progressToken":7,"progress":"1"}"#, "[7,1]"] {
            assert_eq!(progress_of(bad.as_bytes()), None);
        }
    }

    #[test]
    fn sampling_with_tools_is_seen_wherever_the_tools_are() {
        for uses in [
            r#"{"tools":[]}"#,
            r#"{"toolChoice":{"mode":"auto"}}"#,
            r#"{"messages":[{"content":{"type":"text"}},{"content":[{"type":"tool_result"}]}]}"#,
            r#"{"messages":[{"content":{"type":"tool_use"}}]}"#,
        ] {
            assert!(sampling_uses_tools(uses.as_bytes()), "{uses}");
        }
        for plain in [
            r#"{"tools":null}"#,
            r#"{"messages":[{"role":"user","content":{"type":"text","text":"tool_use"}}]}"#,
            r#"{"messages":[1,{"content":[7]},{}]}"#,
        ] {
            assert!(!sampling_uses_tools(plain.as_bytes()), "{plain}");
        }
    }

    #[test]
    fn context_is_wanted_of_this_server_or_all() {
        let check = |context| {
            sampling_uses_context(format!(r#"{{"includeContext":{context}}}"#).as_bytes())
        };
        assert!(check("\"thisServer\"") && check("\"allServers\""));
        assert!(!check("\"none\"") && !check("null"));
    }

    #[test]
    fn elicitation_is_by_form_unless_it_says_otherwise() {
        assert_eq!(elicitation_mode(br#"{"message":"m"}"#), ElicitationMode::Form);
        assert_eq!(elicitation_mode(br#"{"mode":"form"}"#), ElicitationMode::Form);
        let url = br#"{"mode":"url","elicitationId":"e"}"#;
        assert_eq!(elicitation_mode(url), ElicitationMode::Url);
        assert_eq!(elicitation_id_of(url).as_deref(), Some("e"));
        assert_eq!(elicitation_mode(br#"{"mode":"voice"}"#), ElicitationMode::Url);
    }

    #[test]
    fn names_uris_and_cursors_are_texts() {
        let params = br#"{"name":"n\u00e4","uri":"a:b","cursor":""}"#;
        assert_eq!(name_of(params).as_deref(), Some("nä"));
        assert_eq!(resource_uri_of(params).as_deref(), Some("a:b"));
        assert_eq!(cursor_of(params).as_deref(), Some(""));
    }

    #[test]
    fn names_of_catalogs_are_put_in_their_places() {
        let params = br#"{"arguments":{"name":"x"},"name":"a__b"}"#;
        assert_eq!(with_name(params, "b").unwrap(), r#"{"arguments":{"name":"x"},"name":"b"}"#);
        let params = br#"{"ref":{"type":"ref/prompt","name":"a__b"},"argument":{"name":"x"}}"#;
        let expected = r#"{"ref":{"type":"ref/prompt","name":"b"},"argument":{"name":"x"}}"#;
        assert_eq!(with_reference_name(params, "b").unwrap(), expected);
        let logged = |params: &str| with_logger_of(params.as_bytes(), "git").unwrap();
        assert_eq!(logged(r#"{"level":"info"}"#), r#"{"logger":"git","level":"info"}"#);
        assert_eq!(logged(r#"{"logger":"x"}"#), r#"{"logger":"git/x"}"#);
    }

    #[test]
    fn links_to_resources_are_found_in_results() {
        let result =
            br#"{"content":[{"type":"text","text":"a"},{"type":"resource_link","uri":"x:/1"},
            {"type":"resource_link","uri":"x:/2"}]}"#;
        assert_eq!(resource_links(result, 1), ["x:/1"]);
        assert_eq!(resource_links(result, 9), ["x:/1", "x:/2"]);
        assert!(
            resource_links(br#"{"content":[{"type":"text","text":"resource_link"}]}"#, 9)
                .is_empty()
        );
    }

    #[test]
    fn nonsense_says_nothing() {
        for params in NONSENSE {
            assert_eq!(log_level_of(params), None);
            assert_eq!(cancelled_request_id(params), None);
            assert_eq!(progress_of(params), None);
            assert_eq!(resource_uri_of(params), None);
            assert!(!sampling_uses_tools(params) && !sampling_uses_context(params));
        }
    }
}

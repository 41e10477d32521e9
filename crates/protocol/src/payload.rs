//! What the house looks at in payloads. Each reader takes a payload's JSON text and
//! says nothing where the text is not what it should be.

use crate::raw::{Object, may_hold};
use crate::{ProgressToken, RequestId};

/// The request that `notifications/cancelled` names.
pub fn cancelled_request_id(params: &[u8]) -> Option<RequestId> {
    Object::read(params)?.read_as("requestId")
}

/// The token and the progress of `notifications/progress`.
pub fn progress_of(params: &[u8]) -> Option<(ProgressToken, f64)> {
    let params = Object::read(params)?;
    Some((params.read_as("progressToken")?, params.read_as("progress")?))
}

/// `params.name`: the tool or prompt that is meant.
pub fn name_of(params: &[u8]) -> Option<String> {
    Object::read(params)?.read_as("name")
}

/// `params.uri`: the resource that is meant.
pub fn resource_uri_of(params: &[u8]) -> Option<String> {
    Object::read(params)?.read_as("uri")
}

/// `params.level`, of `logging/setLevel` and `notifications/message`.
pub fn log_level_of(params: &[u8]) -> Option<LogLevel> {
    LogLevel::named(&Object::read(params)?.read_as::<String>("level")?)
}

/// Does `sampling/createMessage` give the model tools (SMP-02)?
pub fn sampling_uses_tools(params: &[u8]) -> bool {
    let named = may_hold(params, "tools") || may_hold(params, "toolChoice");
    named && Object::read(params).is_some_and(|p| p.has("tools") || p.has("toolChoice"))
}

/// Does `sampling/createMessage` ask for other servers' context (SMP-02)?
pub fn sampling_uses_context(params: &[u8]) -> bool {
    let context = Object::read(params).and_then(|p| p.read_as::<String>("includeContext"));
    context.is_some_and(|context| context == "thisServer" || context == "allServers")
}

/// How `elicitation/create` asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElicitationMode {
    /// By a form; also where no mode is named.
    Form,
    /// By sending the user to a URL.
    Url,
}

/// The mode of `elicitation/create`.
pub fn elicitation_mode(params: &[u8]) -> ElicitationMode {
    match Object::read(params).and_then(|p| p.read_as::<String>("mode")).as_deref() {
        Some("url") => ElicitationMode::Url,
        _ => ElicitationMode::Form,
    }
}

/// A severity of RFC 5424, least severe first (LOG-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Details for finding faults.
    Debug,
    /// Ordinary events.
    Info,
    /// Ordinary but noteworthy events.
    Notice,
    /// Something may go wrong.
    Warning,
    /// Something went wrong.
    Error,
    /// A part failed.
    Critical,
    /// Someone must act at once.
    Alert,
    /// Nothing works.
    Emergency,
}

impl LogLevel {
    /// The names on the wire, least severe first.
    pub const NAMES: [&'static str; 8] =
        ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

    const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// The level of that name.
    pub fn named(name: &str) -> Option<Self> {
        let index = Self::NAMES.iter().position(|level| *level == name)?;
        Some(Self::ALL[index])
    }

    /// The level's name.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // holds: LOG-01
    #[test]
    fn levels_are_ordered_by_severity_and_read_back_by_name() {
        for (level, name) in LogLevel::ALL.into_iter().zip(LogLevel::NAMES) {
            assert_eq!(LogLevel::named(name), Some(level));
            assert_eq!(level.as_str(), name);
        }
        assert!(LogLevel::ALL.is_sorted());
        assert_eq!(LogLevel::named("loud"), None);
    }

    #[test]
    fn readers_say_nothing_about_what_is_not_there() {
        for payload in ["", "[]", "{}", r#"{"requestId":null,"progressToken":{},"uri":7}"#] {
            let payload = payload.as_bytes();
            assert_eq!(cancelled_request_id(payload), None);
            assert_eq!(progress_of(payload), None);
            assert_eq!(resource_uri_of(payload), None);
            assert_eq!(log_level_of(payload), None);
            assert!(!sampling_uses_tools(payload) && !sampling_uses_context(payload));
            assert_eq!(elicitation_mode(payload), ElicitationMode::Form);
        }
        let progress = br#"{"progressToken":"t","progress":0.5}"#;
        assert_eq!(progress_of(progress), Some(("t".into(), 0.5)));
    }
}

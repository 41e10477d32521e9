//! What logs say of a session's handshake.

use protocol::{InitializeParams, Revision};
use telemetry::Label;

/// Greatest length of a client's name in a summary, in bytes, and of its version; a longer one is
/// cut.
const NAME_BYTES_MAX: usize = 40;
const VERSION_BYTES_MAX: usize = 20;

/// The revision of a session, and the name that its client gave: for logs only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeSummary {
    /// The negotiated revision.
    pub revision: Revision,
    /// The name and the version of the client, as in `inspector/2.1`; `None` if it gave none.
    pub client: Option<Label>,
}

impl HandshakeSummary {
    /// The summary of a session with this revision, from the parameters of its `initialize`; `None`
    /// if those cannot be read.
    pub fn read(revision: Revision, initialize: &[u8]) -> Option<Self> {
        let InitializeParams { client_name, client_version, .. } =
            InitializeParams::read(initialize).ok()?;
        let name = &client_name[..client_name.floor_char_boundary(NAME_BYTES_MAX)];
        let version = &client_version[..client_version.floor_char_boundary(VERSION_BYTES_MAX)];
        let client = match (name, version) {
            ("", "") => None,
            (name, "") => Some(Label::of(name)),
            (name, version) => Some(Label::of(&format!("{name}/{version}"))),
        };
        Some(Self { revision, client })
    }

    /// The summary that the answer to this `initialize` will agree with, if there is one.
    pub fn of_request(initialize: &protocol::Request) -> Option<Self> {
        let params = initialize.params()?;
        let asked = InitializeParams::read(&params).ok()?.protocol_version;
        Self::read(Revision::negotiate(&asked), &params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_named_with_its_version_and_both_are_short() {
        let client = |info: &str| {
            let params = format!(
                r#"{{"protocolVersion":"2025-06-18","capabilities":{{}},"clientInfo":{info}}}"#
            );
            let summary = HandshakeSummary::read(Revision::V2025_06_18, params.as_bytes());
            summary.unwrap().client.map_or_else(String::new, |client| client.as_str().to_owned())
        };
        assert_eq!(client(r#"{"name":"inspector","version":"2.1"}"#), "inspector/2.1");
        assert_eq!(client(r#"{"name":"inspector"}"#), "inspector");
        assert_eq!(client("{}"), "");
        let long = "ä".repeat(90);
        let long = client(&format!(r#"{{"name":"{long}","version":"{long}"}}"#));
        assert_eq!(long.len(), NAME_BYTES_MAX + 1 + VERSION_BYTES_MAX);
        assert_eq!(HandshakeSummary::read(Revision::V2025_06_18, b"[]"), None);
    }
}

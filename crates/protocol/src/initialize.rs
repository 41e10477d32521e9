//! The handshake's payloads: what a client declares, and what a server answers (RPC-07).

use bytes::Bytes;

use crate::raw::{self, Object};
use crate::{ErrorCode, Method, Rejection, Revision};

/// The parameters of `initialize`, as far as the house looks at them.
#[derive(Clone, Debug, PartialEq)]
pub struct InitializeParams {
    /// The revision that the client asks for, whatever it names.
    pub protocol_version: String,
    /// What the client can be asked.
    pub capabilities: ClientCapabilities,
    /// `clientInfo.name`, for logs.
    pub client_name: String,
    /// `clientInfo.version`, for logs.
    pub client_version: String,
}

impl InitializeParams {
    /// Reads the parameters' JSON text.
    pub fn read(params: &[u8]) -> Result<Self, Rejection> {
        let object = Object::read(params).unwrap_or_default();
        let missing = |what: &str| {
            Rejection::new(ErrorCode::InvalidParams, format!("`initialize` needs {what}"))
        };
        let protocol_version = object
            .read_as("protocolVersion")
            .ok_or_else(|| missing("`protocolVersion`, a string"))?;
        let capabilities =
            object.object("capabilities").ok_or_else(|| missing("`capabilities`, an object"))?;
        let info = object.object("clientInfo").ok_or_else(|| missing("`clientInfo`, an object"))?;
        Ok(Self {
            protocol_version,
            capabilities: ClientCapabilities::of(&capabilities),
            client_name: info.read_as("name").unwrap_or_default(),
            client_version: info.read_as("version").unwrap_or_default(),
        })
    }
}

/// What a client declared that it can be asked. Unknown capabilities are nobody's business here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCapabilities {
    roots: bool,
    sampling: bool,
    sampling_tools: bool,
    sampling_context: bool,
    elicitation_form: bool,
    elicitation_url: bool,
}

impl ClientCapabilities {
    fn of(capabilities: &Object<'_>) -> Self {
        let sampling = capabilities.object("sampling");
        let elicitation = capabilities.object("elicitation");
        let has = |of: &Option<Object<'_>>, key| of.as_ref().is_some_and(|of| of.has(key));
        let url = has(&elicitation, "url");
        Self {
            roots: capabilities.object("roots").is_some(),
            sampling: sampling.is_some(),
            sampling_tools: has(&sampling, "tools"),
            sampling_context: has(&sampling, "context"),
            // Without modes, elicitation is by form (ELI-01).
            elicitation_form: elicitation.is_some() && (has(&elicitation, "form") || !url),
            elicitation_url: url,
        }
    }

    /// Can it be asked for its roots (ROOT-01)?
    pub fn roots(&self) -> bool {
        self.roots
    }

    /// Can its model be asked (SMP-01)?
    pub fn sampling(&self) -> bool {
        self.sampling
    }

    /// May its model be given tools (SMP-02)?
    pub fn sampling_tools(&self) -> bool {
        self.sampling_tools
    }

    /// May its model be given other servers' context (SMP-02)?
    pub fn sampling_context(&self) -> bool {
        self.sampling_context
    }

    /// Can its user be asked by a form (ELI-01)?
    pub fn elicitation_form(&self) -> bool {
        self.elicitation_form
    }

    /// Can its user be sent to a URL (ELI-01)?
    pub fn elicitation_url(&self) -> bool {
        self.elicitation_url
    }
}

/// The result of `initialize`, as far as the house looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitializeResult {
    /// The revision that the server speaks.
    pub protocol_version: String,
    /// What the server offers.
    pub capabilities: ServerCapabilities,
}

impl InitializeResult {
    /// Reads the result's JSON text.
    pub fn read(result: &[u8]) -> Result<Self, Rejection> {
        let malformed = || {
            Rejection::new(
                ErrorCode::InternalError,
                "the server's answer to `initialize` is malformed",
            )
        };
        let object = Object::read(result).ok_or_else(malformed)?;
        let protocol_version = object.read_as("protocolVersion").ok_or_else(malformed)?;
        let capabilities = object.object("capabilities").ok_or_else(malformed)?;
        Ok(Self { protocol_version, capabilities: ServerCapabilities::of(&capabilities) })
    }
}

/// What a server declared that it offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCapabilities {
    tools: bool,
    tools_list_changed: bool,
    prompts_list_changed: bool,
    resources_list_changed: bool,
}

impl ServerCapabilities {
    fn of(capabilities: &Object<'_>) -> Self {
        let changes = |key| capabilities.object(key).is_some_and(|of| of.is_true("listChanged"));
        Self {
            tools: capabilities.object("tools").is_some(),
            tools_list_changed: changes("tools"),
            prompts_list_changed: changes("prompts"),
            resources_list_changed: changes("resources"),
        }
    }

    /// Does it have tools (TOOL-01)?
    pub fn tools(&self) -> bool {
        self.tools
    }

    /// The list changes that it declared to tell of: what a client is told again when
    /// it may have missed something.
    pub fn list_changed_methods(&self) -> Vec<Method> {
        let all = [
            (self.tools_list_changed, Method::ToolsListChanged),
            (self.prompts_list_changed, Method::PromptsListChanged),
            (self.resources_list_changed, Method::ResourcesListChanged),
        ];
        all.into_iter().filter(|(told, _)| *told).map(|(_, method)| method).collect()
    }
}

/// The payload of an `initialize`, or of its result, with another `protocolVersion`; every other byte stays.
pub fn with_protocol_version(payload: &[u8], revision: Revision) -> Bytes {
    raw::with_member(payload, "protocolVersion", &raw::quoted(revision.as_str()))
        .unwrap_or_else(|| Bytes::copy_from_slice(payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    // holds: RPC-07
    #[test]
    fn what_a_client_declares_is_what_it_can_be_asked() {
        let read = |capabilities: &str| {
            let params = format!(
                r#"{{"protocolVersion":"x","capabilities":{capabilities},"clientInfo":{{"name":"n"}}}}"#
            );
            InitializeParams::read(params.as_bytes()).unwrap().capabilities
        };
        assert_eq!(read("{}"), ClientCapabilities::default());
        assert_eq!(read(r#"{"roots":null,"sampling":7}"#), ClientCapabilities::default());
        assert!(read(r#"{"roots":{"listChanged":true}}"#).roots());
        let sampling = read(r#"{"sampling":{"tools":{}}}"#);
        assert!(sampling.sampling() && sampling.sampling_tools() && !sampling.sampling_context());
        for (declared, form, url) in [
            ("{}", true, false),
            (r#"{"form":{}}"#, true, false),
            (r#"{"url":{}}"#, false, true),
            (r#"{"url":{},"form":{}}"#, true, true),
        ] {
            let capabilities = read(&format!(r#"{{"elicitation":{declared}}}"#));
            assert_eq!(capabilities.elicitation_form(), form, "{declared}");
            assert_eq!(capabilities.elicitation_url(), url, "{declared}");
        }
    }

    // holds: RPC-13
    #[test]
    fn an_initialize_that_lacks_something_says_what() {
        for (params, lacks) in [
            ("", "protocolVersion"),
            (r#"{"protocolVersion":7,"capabilities":{},"clientInfo":{}}"#, "protocolVersion"),
            (r#"{"protocolVersion":"x","clientInfo":{}}"#, "capabilities"),
            (r#"{"protocolVersion":"x","capabilities":{}}"#, "clientInfo"),
        ] {
            let rejection = InitializeParams::read(params.as_bytes()).unwrap_err();
            assert_eq!(rejection.code, ErrorCode::InvalidParams);
            assert!(rejection.message.contains(lacks), "{rejection}");
        }
    }
}

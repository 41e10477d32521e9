//! The two payloads of the handshake: names and capabilities of both sides (RPC-07).
//!
//! The defined members of a client's parameters are kept unchanged, for every handshake with its
//! server; the others are dropped. A server's result is forwarded unchanged. In both, the revision
//! is replaced by the negotiated one.

use bytes::Bytes;

use crate::raw::{self, Object};
use crate::{ErrorCode, Listed, Method, Rejection, Revision};

/// Maximum length of a peer's name or version, in bytes; a longer one is truncated.
const NAME_BYTES_MAX: usize = 100;

/// The client's parameters of `initialize`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitializeParams {
    /// The requested revision; any text.
    pub protocol_version: String,
    /// The client's capabilities under the negotiated revision (RPC-08).
    pub capabilities: ClientCapabilities,
    /// The client's name, for logs only. Truncated, and without control characters. Empty if it is
    /// missing.
    pub client_name: String,
    /// The version of the client, likewise.
    pub client_version: String,
}

impl InitializeParams {
    /// Parses the JSON text of the parameters. Malformed ones are rejected with -32602.
    pub fn read(params: &[u8]) -> Result<Self, Rejection> {
        let wrong = |what: &str| {
            Rejection::new(ErrorCode::InvalidParams, format!("`initialize` needs {what}"))
        };
        let params = Object::read(params).unwrap_or_default();
        let protocol_version: String = params
            .read_as("protocolVersion")
            .ok_or_else(|| wrong("`protocolVersion`, a string"))?;
        let capabilities =
            params.object("capabilities").ok_or_else(|| wrong("`capabilities`, an object"))?;
        let info = params.object("clientInfo").ok_or_else(|| wrong("`clientInfo`, an object"))?;
        let capabilities = ClientCapabilities::read(&capabilities);
        Ok(Self {
            capabilities: capabilities.under(Revision::negotiate(&protocol_version)),
            protocol_version,
            client_name: for_logs(&info, "name"),
            client_version: for_logs(&info, "version"),
        })
    }
}

/// A peer's name or version, truncated and without control characters.
fn for_logs(info: &Object<'_>, key: &str) -> String {
    let said: String = info.read_as(key).unwrap_or_default();
    let mut tame: String = said.chars().filter(|char| !char.is_control()).collect();
    tame.truncate(raw::floor_char_boundary(&tame, NAME_BYTES_MAX));
    tame
}

/// The capabilities of a client (RPC-12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCapabilities {
    roots: bool,
    roots_list_changed: bool,
    sampling: bool,
    sampling_tools: bool,
    sampling_context: bool,
    elicitation_form: bool,
    elicitation_url: bool,
}

impl ClientCapabilities {
    /// Reads the declared capabilities by the rules of the newest revision.
    fn read(capabilities: &Object<'_>) -> Self {
        let roots = capabilities.object("roots");
        let sampling = capabilities.object("sampling");
        let elicitation = capabilities.object("elicitation");
        let declared = |object: &Option<Object<'_>>, key| {
            object.as_ref().is_some_and(|object| object.declares(key))
        };
        // Without a declared mode, the capability means the form mode (ELI-01).
        let elicitation_url = declared(&elicitation, "url");
        Self {
            roots: roots.is_some(),
            roots_list_changed: roots.is_some_and(|roots| roots.is_true("listChanged")),
            sampling: sampling.is_some(),
            sampling_tools: declared(&sampling, "tools"),
            sampling_context: declared(&sampling, "context"),
            elicitation_form: elicitation.is_some()
                && (declared(&elicitation, "form") || !elicitation_url),
            elicitation_url,
        }
    }

    /// These capabilities under another revision. Capabilities that it does not define are
    /// removed. If it defines no modes of elicitation, elicitation means the form mode.
    pub fn under(self, revision: Revision) -> Self {
        let has_modes = revision.has_elicitation_modes();
        let elicitation_form = self.elicitation_form || (self.elicitation_url && !has_modes);
        Self {
            sampling_tools: self.sampling_tools && revision.has_sampling_tools(),
            // Older revisions include context in the capability for sampling (SMP-02).
            sampling_context: self.sampling
                && (self.sampling_context || !revision.has_sampling_tools()),
            elicitation_form: elicitation_form && revision.has_elicitation(),
            elicitation_url: self.elicitation_url && has_modes,
            ..self
        }
    }

    /// Whether it answers requests for its roots (ROOT-01).
    pub fn roots(&self) -> bool {
        self.roots
    }

    /// Whether it sends notifications when its roots change.
    pub fn roots_list_changed(&self) -> bool {
        self.roots_list_changed
    }

    /// Whether it answers sampling requests (SMP-01).
    pub fn sampling(&self) -> bool {
        self.sampling
    }

    /// Whether sampling requests may have tools (SMP-02).
    pub fn sampling_tools(&self) -> bool {
        self.sampling_tools
    }

    /// Whether sampling requests may include the context of servers (SMP-02).
    pub fn sampling_context(&self) -> bool {
        self.sampling_context
    }

    /// Whether it answers elicitation by form (ELI-01).
    pub fn elicitation_form(&self) -> bool {
        self.elicitation_form
    }

    /// Whether it answers elicitation by URL (ELI-01).
    pub fn elicitation_url(&self) -> bool {
        self.elicitation_url
    }
}

/// The result of `initialize` that a tenant's server sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitializeResult {
    /// The revision that the server selected; any text.
    pub protocol_version: String,
    /// The server's capabilities.
    pub capabilities: ServerCapabilities,
    /// The server's name, for logs; empty if it is missing.
    pub server_name: String,
    /// The version of the server, likewise.
    pub server_version: String,
}

impl InitializeResult {
    /// Parses the JSON text of the result. A result without name or version is accepted, so that
    /// the tenant's server can be hosted.
    pub fn read(result: &[u8]) -> Result<Self, Rejection> {
        let malformed = || {
            Rejection::new(
                ErrorCode::InternalError,
                "the server's answer to `initialize` is malformed",
            )
        };
        let result = Object::read(result).ok_or_else(malformed)?;
        let protocol_version = result.read_as("protocolVersion").ok_or_else(malformed)?;
        let capabilities = result.object("capabilities").ok_or_else(malformed)?;
        let info = result.object("serverInfo").unwrap_or_default();
        Ok(Self {
            protocol_version,
            capabilities: ServerCapabilities::read(&capabilities),
            server_name: for_logs(&info, "name"),
            server_version: for_logs(&info, "version"),
        })
    }

    /// The revision that the server selected, if it is a known one.
    pub fn revision(&self) -> Option<Revision> {
        Revision::named(&self.protocol_version)
    }
}

/// The capabilities of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCapabilities {
    tools: Offer,
    prompts: Offer,
    resources: Offer,
    resources_subscribe: bool,
    logging: bool,
    completions: bool,
}

/// A list that a server may have, and whether it sends notifications of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Offer {
    is_there: bool,
    list_changed: bool,
}

impl ServerCapabilities {
    fn read(capabilities: &Object<'_>) -> Self {
        let says = |key, hint| capabilities.object(key).is_some_and(|object| object.is_true(hint));
        let offer = |key| Offer {
            is_there: capabilities.declares(key),
            list_changed: says(key, "listChanged"),
        };
        Self {
            tools: offer("tools"),
            prompts: offer("prompts"),
            resources: offer("resources"),
            resources_subscribe: says("resources", "subscribe"),
            logging: capabilities.declares("logging"),
            completions: capabilities.declares("completions"),
        }
    }

    /// Whether it has tools (TOOL-01).
    pub fn tools(&self) -> bool {
        self.tools.is_there
    }

    /// Whether it sends notifications when the set of tools changes.
    pub fn tools_list_changed(&self) -> bool {
        self.tools.list_changed
    }

    /// Whether it has prompts (PRM-01).
    pub fn prompts(&self) -> bool {
        self.prompts.is_there
    }

    /// Whether it sends notifications when the set of prompts changes.
    pub fn prompts_list_changed(&self) -> bool {
        self.prompts.list_changed
    }

    /// Whether it has resources (RES-01).
    pub fn resources(&self) -> bool {
        self.resources.is_there
    }

    /// Whether it sends notifications when the set of resources changes.
    pub fn resources_list_changed(&self) -> bool {
        self.resources.list_changed
    }

    /// Whether clients can subscribe to its resources (RES-06).
    pub fn resources_subscribe(&self) -> bool {
        self.resources_subscribe
    }

    /// Whether it sends log messages (LOG-01).
    pub fn logging(&self) -> bool {
        self.logging
    }

    /// The notifications of list changes that it declared. A client that may have missed one gets
    /// all of them.
    pub fn list_changed_methods(&self) -> Vec<Method> {
        let all = [
            (self.tools, Method::ToolsListChanged),
            (self.prompts, Method::PromptsListChanged),
            (self.resources, Method::ResourcesListChanged),
        ];
        all.into_iter().filter(|(list, _)| list.list_changed).map(|(_, method)| method).collect()
    }

    /// Whether it has the list of which this notification reports changes, declared or not.
    pub fn has_list_of(&self, notification: &Method) -> bool {
        match notification {
            Method::ToolsListChanged => self.tools(),
            Method::PromptsListChanged => self.prompts(),
            Method::ResourcesListChanged => self.resources(),
            _ => false,
        }
    }

    /// The capabilities of two servers that are offered as one, which sends notifications of list
    /// changes itself.
    pub fn joined(self, other: Self) -> Self {
        let offer = |own: Offer, other: Offer| {
            let is_there = own.is_there || other.is_there;
            Offer { is_there, list_changed: is_there }
        };
        Self {
            tools: offer(self.tools, other.tools),
            prompts: offer(self.prompts, other.prompts),
            resources: offer(self.resources, other.resources),
            resources_subscribe: self.resources_subscribe || other.resources_subscribe,
            logging: self.logging || other.logging,
            completions: self.completions || other.completions,
        }
    }

    /// Everything that a server can offer.
    pub fn all() -> Self {
        let offer = Offer { is_there: true, list_changed: true };
        Self {
            tools: offer,
            prompts: offer,
            resources: offer,
            resources_subscribe: true,
            logging: true,
            completions: true,
        }
    }

    /// Whether it has this list.
    pub fn lists(&self, listed: Listed) -> bool {
        match listed {
            Listed::Tool => self.tools(),
            Listed::Prompt => self.prompts(),
            Listed::Resource | Listed::Template => self.resources(),
        }
    }

    /// The JSON text of these capabilities.
    fn to_json(self) -> String {
        let list = |key: &str, offer: Offer, more: &str| {
            let changed = if offer.list_changed { "\"listChanged\":true" } else { "" };
            let comma = if !changed.is_empty() && !more.is_empty() { "," } else { "" };
            offer.is_there.then(|| format!("\"{key}\":{{{changed}{comma}{more}}}"))
        };
        let plain = |key: &str, is_there: bool| is_there.then(|| format!("\"{key}\":{{}}"));
        let subscribe = if self.resources_subscribe { "\"subscribe\":true" } else { "" };
        let members = [
            list("tools", self.tools, ""),
            list("prompts", self.prompts, ""),
            list("resources", self.resources, subscribe),
            plain("logging", self.logging),
            plain("completions", self.completions),
        ];
        format!("{{{}}}", members.into_iter().flatten().collect::<Vec<_>>().join(","))
    }

    /// Whether it completes arguments (CMP-01). 2024-11-05 has no such capability, so its servers
    /// may complete arguments without declaring it.
    pub fn completions(&self) -> bool {
        self.completions
    }
}

/// The part of the parameters of `initialize` that is stored, in at most `bytes_max` bytes:
/// `protocolVersion`, `capabilities` and `clientInfo`, each unchanged. The client's icons are left
/// out if they do not fit. `None` if the rest is longer than `bytes_max`.
pub fn kept_initialize_params(params: &[u8], bytes_max: usize) -> Option<Bytes> {
    let params = Object::read(params).unwrap_or_default();
    let info = params.get("clientInfo");
    let kept = |info: Option<&str>| {
        let all = [
            ("protocolVersion", params.get("protocolVersion")),
            ("capabilities", params.get("capabilities")),
            ("clientInfo", info),
        ];
        let all = all.into_iter().filter_map(|(key, text)| Some((key, text?)));
        Some(raw::object(all)).filter(|kept| kept.len() <= bytes_max)
    };
    let iconless = || {
        let info = Object::read(info?.as_bytes())?;
        let members = info.members.iter().filter(|(key, _)| key != "icons");
        let members: Vec<_> = members.map(|(key, text)| (&**key, text.get())).collect();
        kept(Some(&raw::object(members)))
    };
    kept(info).or_else(iconless).map(Bytes::from)
}

/// The result of `initialize` of a server that is made of several. `name` and `version` are its own.
pub fn initialize_result(
    revision: Revision,
    capabilities: ServerCapabilities,
    (name, version): (&str, &str),
    instructions: Option<&str>,
) -> Bytes {
    let info = [("name", raw::quoted(name)), ("version", raw::quoted(version))];
    let info = raw::object(info.iter().map(|(key, value)| (*key, value.as_str())));
    let (revision, capabilities) = (raw::quoted(revision.as_str()), capabilities.to_json());
    let mut members = vec![
        ("protocolVersion", revision.as_str()),
        ("capabilities", capabilities.as_str()),
        ("serverInfo", info.as_str()),
    ];
    let instructions = instructions.map(raw::quoted);
    members.extend(instructions.as_deref().map(|text| ("instructions", text)));
    raw::object(members).into()
}

/// The instructions in the result of `initialize`, for models: at most so many bytes of them.
pub fn instructions_of(result: &[u8], bytes_max: usize) -> Option<String> {
    let mut text: String = Object::read(result)?.read_as("instructions")?;
    text.truncate(raw::floor_char_boundary(&text, bytes_max));
    Some(text).filter(|text| !text.trim().is_empty())
}

/// Replaces `protocolVersion` in the parameters or the result of `initialize`. Every other byte
/// stays. Text that is not an object stays unchanged.
pub fn with_protocol_version(payload: &[u8], revision: Revision) -> Bytes {
    raw::with_member(payload, "protocolVersion", &raw::quoted(revision.as_str()))
        .unwrap_or_else(|| Bytes::copy_from_slice(payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_capabilities_are_those_of_both_and_promise_list_changes() {
        let read = |json: &str| ServerCapabilities::read(&Object::read(json.as_bytes()).unwrap());
        let one = read(r#"{"tools":{},"logging":{}}"#);
        let other = read(r#"{"resources":{"subscribe":true},"completions":{}}"#);
        let joined = one.joined(other);
        let all = r#"{"tools":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true},"logging":{},"completions":{}}"#;
        assert_eq!(joined.to_json(), all);
        let result = initialize_result(Revision::NEWEST_STABLE, joined, ("a", "1"), Some("x\ny"));
        let parsed = InitializeResult::read(&result).unwrap();
        assert_eq!((parsed.capabilities, parsed.server_name.as_str()), (joined, "a"));
        assert_eq!(instructions_of(&result, 2).as_deref(), Some("x\n"));
        assert_eq!(read(&ServerCapabilities::all().to_json()), ServerCapabilities::all());
    }

    fn params(version: &str, capabilities: &str) -> String {
        format!(
            r#"{{"protocolVersion":"{version}","capabilities":{capabilities},"clientInfo":{{"name":"c","version":"1","title":"t"}},"x":[]}}"#
        )
    }

    fn capabilities(version: &str, declared: &str) -> ClientCapabilities {
        let read = InitializeParams::read(params(version, declared).as_bytes());
        read.expect("the parameters are well formed").capabilities
    }

    #[test]
    fn parameters_tell_revision_capabilities_and_client() {
        let read = InitializeParams::read(params("2031-01-01", "{}").as_bytes()).unwrap();
        assert_eq!(read.protocol_version, "2031-01-01");
        assert_eq!(read.capabilities, ClientCapabilities::default());
        assert_eq!((&*read.client_name, &*read.client_version), ("c", "1"));
    }

    #[test]
    fn of_the_parameters_only_what_is_used_again_is_kept_and_icons_where_they_fit() {
        let icons = format!(r#""icons":[{{"src":"data:{}"}}],"#, "x".repeat(500));
        let info = |icons: &str| format!(r#"{{{icons}"name":"c \u00fc","version":"1"}}"#);
        let given = |icons: &str| {
            format!(
                r#"{{"_meta":{{"a":1}},"clientInfo":{},"pad":"{}","capabilities":{{"x":[]}},"protocolVersion":"2025-11-25"}}"#,
                info(icons),
                "x".repeat(9_000),
            )
        };
        let expected = |icons: &str| {
            format!(
                r#"{{"protocolVersion":"2025-11-25","capabilities":{{"x":[]}},"clientInfo":{}}}"#,
                info(icons)
            )
        };
        let kept = |icons: &str, most| kept_initialize_params(given(icons).as_bytes(), most);
        assert_eq!(kept(&icons, 1_000).unwrap(), expected(&icons));
        assert_eq!(kept(&icons, 200).unwrap(), expected(""));
        assert_eq!(kept("", 200).unwrap(), expected(""));
        assert_eq!(kept("", 50), None);
    }

    // holds: RPC-13
    #[test]
    fn malformed_parameters_are_invalid() {
        let good = params("2025-11-25", "{}");
        assert!(InitializeParams::read(good.as_bytes()).is_ok());
        for (from, to) in [
            ("\"2025-11-25\"", "7"),
            ("\"2025-11-25\"", "null"),
            ("protocolVersion", "version"),
            ("\"capabilities\":{}", "\"capabilities\":[]"),
            ("\"capabilities\"", "\"caps\""),
            ("clientInfo", "client"),
        ] {
            let bad = good.replacen(from, to, 1);
            let rejection = InitializeParams::read(bad.as_bytes()).expect_err(&bad);
            assert_eq!((rejection.code, rejection.id), (ErrorCode::InvalidParams, None));
        }
        assert!(InitializeParams::read(b"").is_err());
    }

    #[test]
    fn a_clients_name_is_shortened_and_cannot_disturb_a_log() {
        let name = format!("a\\n\\u001b[2J{}", "ä".repeat(500));
        let bad = params("2025-11-25", "{}").replacen("\"c\"", &format!("\"{name}\""), 1);
        let name = InitializeParams::read(bad.as_bytes()).unwrap().client_name;
        assert!(name.starts_with("a[2Jä") && name.len() <= NAME_BYTES_MAX);
    }

    #[test]
    fn elicitation_without_modes_is_by_form() {
        let check = |version: &str, declared: &str, form: bool, url: bool| {
            let read = capabilities(version, &format!(r#"{{"elicitation":{declared}}}"#));
            let found = (read.elicitation_form(), read.elicitation_url());
            assert_eq!(found, (form, url), "{version} {declared}");
        };
        for newest in ["2025-11-25", "DRAFT-2026-v1", "1999-01-01"] {
            check(newest, "{}", true, false);
            check(newest, r#"{"applyDefaults":true}"#, true, false);
            check(newest, r#"{"form":{}}"#, true, false);
            check(newest, r#"{"url":{}}"#, false, true);
            check(newest, r#"{"form":{},"url":{}}"#, true, true);
            check(newest, r#"{"form":{"applyDefaults":true}}"#, true, false);
            check(newest, "null", false, false);
            check(newest, "true", false, false);
        }
        check("2025-06-18", "{}", true, false);
        check("2025-06-18", r#"{"url":{}}"#, true, false);
        // Older revisions have no elicitation, so a declared capability is removed.
        check("2025-03-26", "{}", false, false);
        check("2024-11-05", r#"{"form":{},"url":{}}"#, false, false);
    }

    #[test]
    fn sampling_has_tools_and_context_where_declared_and_known() {
        let check = |version: &str, declared: &str, expected: (bool, bool, bool)| {
            let read = capabilities(version, declared);
            let found = (read.sampling(), read.sampling_tools(), read.sampling_context());
            assert_eq!(found, expected, "{version} {declared}");
        };
        check("2025-11-25", "{}", (false, false, false));
        check("2025-11-25", r#"{"sampling":{}}"#, (true, false, false));
        check("2025-11-25", r#"{"sampling":{"tools":{}}}"#, (true, true, false));
        check("2025-11-25", r#"{"sampling":{"context":{}}}"#, (true, false, true));
        check("2025-06-18", r#"{"sampling":{"tools":{}}}"#, (true, false, true));
        check("2025-06-18", "{}", (false, false, false));
    }

    #[test]
    fn roots_may_tell_their_changes() {
        let check = |declared: &str, expected: (bool, bool)| {
            let read = capabilities("2024-11-05", declared);
            assert_eq!((read.roots(), read.roots_list_changed()), expected, "{declared}");
        };
        check("{}", (false, false));
        check(r#"{"roots":{}}"#, (true, false));
        check(r#"{"roots":{"listChanged":true}}"#, (true, true));
        check(r#"{"roots":{"listChanged":false}}"#, (true, false));
    }

    #[test]
    fn a_servers_answer_tells_what_it_offers() {
        let result =
            br#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},
            "resources":{"subscribe":true},"logging":{},"experimental":{"x":1}},
            "serverInfo":{"name":"s","version":"2"},"instructions":"be kind"}"#;
        let read = InitializeResult::read(result).unwrap();
        assert_eq!(read.revision(), Revision::named("2025-06-18"));
        assert_eq!((&*read.server_name, &*read.server_version), ("s", "2"));
        let offers = read.capabilities;
        assert!(offers.tools() && offers.tools_list_changed() && offers.logging());
        assert!(offers.resources() && offers.resources_subscribe());
        assert!(!offers.resources_list_changed() && !offers.completions());
        assert!(!offers.prompts() && !offers.prompts_list_changed());
        assert_eq!(offers.list_changed_methods(), [Method::ToolsListChanged]);
        assert!(offers.has_list_of(&Method::ToolsListChanged));
        assert!(!offers.has_list_of(&Method::PromptsListChanged));
    }

    #[test]
    fn a_sparse_answer_is_taken_and_one_without_revision_or_capabilities_is_not() {
        let sparse = br#"{"protocolVersion":"x","capabilities":{}}"#;
        let sparse = InitializeResult::read(sparse).unwrap();
        assert_eq!((sparse.revision(), sparse.capabilities), (None, ServerCapabilities::default()));
        for bad in [
            "{}",
            "[]",
            "",
            r#"{"protocolVersion":1,"capabilities":{}}"#,
            r#"{"protocolVersion":"x"}"#,
        ] {
            let rejection = InitializeResult::read(bad.as_bytes()).expect_err(bad);
            assert_eq!(rejection.code, ErrorCode::InternalError);
        }
    }

    #[test]
    fn only_the_revision_is_replaced() {
        let payload = br#"{ "a" : 1.0, "protocolVersion" : "1999-01-01" , "capabilities":{"protocolVersion":1} }"#;
        let expected = r#"{ "a" : 1.0, "protocolVersion" : "2025-11-25" , "capabilities":{"protocolVersion":1} }"#;
        assert_eq!(with_protocol_version(payload, Revision::NEWEST_STABLE), expected);
        assert_eq!(with_protocol_version(b"[1]", Revision::NEWEST_STABLE), "[1]");
    }
}

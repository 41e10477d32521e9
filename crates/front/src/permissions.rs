//! What a client may do at an endpoint, and what it may see of it.
//!
//! Each message is judged where it arrives, before a session gets it. Lists are filtered where they leave
//! the node, by the scopes of the connection on which they leave: a list that is repeated on a resumed
//! stream, or that another node's session sends, is filtered as well.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    Ambiguous, Body as Posted, ErrorCode, Listed, Message, Method, Named, Rejection, RequestId,
    named, uri_forms, without_entries,
};
use tenants::{Attributes, Judgement, Kind, Permissions, Scopes};

/// What the client of one request may do.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    permissions: Arc<Permissions>,
    client: Attributes,
    /// Whether the client can get further scopes from an issuer.
    can_step_up: bool,
}

/// Why a message is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotPermitted {
    /// With these scopes it would be permitted, and the client can ask its issuer for them.
    Needs(Scopes, Option<RequestId>),
    /// The answer. It is the same whether or not the server has what was named.
    Refused(Rejection),
}

impl NotPermitted {
    /// The code of the JSON-RPC error, if the answer has one.
    pub(crate) fn code(&self) -> Option<i32> {
        match self {
            Self::Needs(..) => None,
            Self::Refused(rejection) => Some(rejection.code.number()),
        }
    }
}

impl Grant {
    /// What a client with these attributes may do.
    pub(crate) fn new(
        permissions: &Arc<Permissions>,
        client: Attributes,
        can_step_up: bool,
    ) -> Self {
        Self { permissions: Arc::clone(permissions), client, can_step_up }
    }

    /// Whether the client has exactly these scopes.
    pub(crate) fn has_scopes(&self, scopes: &Scopes) -> bool {
        self.client.scopes == *scopes
    }

    /// Whether these are the rules by which the client was judged. Its attributes are not compared.
    pub(crate) fn is_by(&self, permissions: &Permissions) -> bool {
        *self.permissions == *permissions
    }

    /// Whether the client may open a session.
    pub(crate) fn may_open(&self) -> bool {
        self.permissions.allows_method(&self.client, Method::Initialize.as_str())
    }

    /// Whether the client may use no method at all. Then it gets no messages either.
    pub(crate) fn denies_all(&self) -> bool {
        self.permissions.denies_all_methods(&self.client)
    }

    /// Judges each message of a body. A member of a batch that is not permitted is replaced by an
    /// error, which the session sends as its answer; the other members go on.
    pub(crate) fn judge(&self, body: Posted) -> Result<Posted, NotPermitted> {
        match body {
            Posted::One(message) => match self.judge_one(&message) {
                Verdict::Permitted => Ok(Posted::One(message)),
                Verdict::Needs(scopes) if self.can_step_up => {
                    Err(NotPermitted::Needs(scopes, id_of(&message)))
                }
                other => Err(NotPermitted::Refused(other.rejection(&message))),
            },
            Posted::Batch(members) => {
                let judged = members.into_iter().map(|member| {
                    let message = member?;
                    match self.judge_one(&message) {
                        Verdict::Permitted => Ok(message),
                        // A status would be about all members.
                        other => Err(other.rejection(&message)),
                    }
                });
                Ok(Posted::Batch(judged.collect()))
            }
        }
    }

    /// The message as the client may see it.
    pub(crate) fn filter(&self, message: Bytes) -> Bytes {
        let keeps = |listed, name: &str| match listed {
            Listed::Tool => self.allows(Kind::Tool, name),
            Listed::Prompt => self.allows(Kind::Prompt, name),
            Listed::Resource => self.allows(Kind::Resource, name),
            Listed::Template => {
                let begin = name.split('{').next().unwrap_or_default();
                self.permissions.may_allow_resource(&self.client, begin)
            }
        };
        without_entries(&message, keeps).unwrap_or(message)
    }

    fn allows(&self, kind: Kind, name: &str) -> bool {
        self.judge_forms(kind, name) == Ok(Judgement::Allowed)
    }

    fn judge_one(&self, message: &Message) -> Verdict {
        let permissions = &self.permissions;
        let is_allowed = match method_of(message) {
            Some(method) => permissions.allows_method(&self.client, method),
            // A response to a request of the server.
            None => !self.denies_all(),
        };
        if !is_allowed {
            return Verdict::Denied("there is no such method");
        }
        let (kind, name, denied) = match named(message) {
            Err(_) => return Verdict::Ambiguous,
            Ok(Named::Nothing) => return Verdict::Permitted,
            Ok(Named::Tool(name)) => (Kind::Tool, name, "there is no such tool"),
            Ok(Named::Prompt(name)) => (Kind::Prompt, name, "there is no such prompt"),
            Ok(Named::Resource(uri)) => (Kind::Resource, uri, "there is no such resource"),
            Ok(Named::Method(name)) => (Kind::Method, name.into(), "there is no such method"),
        };
        match self.judge_forms(kind, &name) {
            Err(_) => Verdict::Ambiguous,
            Ok(Judgement::Allowed) => Verdict::Permitted,
            Ok(Judgement::Needs(scopes)) => Verdict::Needs(scopes),
            Ok(Judgement::Denied) => Verdict::Denied(denied),
        }
    }

    /// Judges a name; of a resource each form that a server could make of its URI.
    fn judge_forms(&self, kind: Kind, name: &str) -> Result<Judgement, Ambiguous> {
        let judge = |name: &str| self.permissions.judge(&self.client, kind, name);
        if kind != Kind::Resource {
            return Ok(judge(name));
        }
        let mut worst = Judgement::Allowed;
        for form in uri_forms(name)? {
            match judge(&form) {
                Judgement::Denied => return Ok(Judgement::Denied),
                Judgement::Needs(scopes) => worst = Judgement::Needs(scopes),
                Judgement::Allowed => {}
            }
        }
        Ok(worst)
    }
}

/// What becomes of one message.
enum Verdict {
    Permitted,
    Needs(Scopes),
    Denied(&'static str),
    /// Servers could read it in another way than this node.
    Ambiguous,
}

impl Verdict {
    /// The answer to a message that is not permitted.
    fn rejection(self, message: &Message) -> Rejection {
        let what = match self {
            Self::Needs(scopes) => format!("this needs a credential with the scopes: {scopes}"),
            Self::Ambiguous => Ambiguous.to_string(),
            Self::Denied(what) => what.to_owned(),
            Self::Permitted => String::new(),
        };
        Rejection::new(ErrorCode::InvalidParams, what).of(id_of(message))
    }
}

/// The id, if the message is a request.
pub(crate) fn id_of(message: &Message) -> Option<RequestId> {
    match message {
        Message::Request(request) => Some(request.id.clone()),
        _ => None,
    }
}

fn method_of(message: &Message) -> Option<&str> {
    match message {
        Message::Request(request) => Some(request.method.as_str()),
        Message::Notification(notification) => Some(notification.method.as_str()),
        Message::Response(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Limits, parse};
    use tenants::{PermissionSettings, Settings, Tenant};

    use super::*;

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|text| (*text).to_owned()).collect()
    }

    /// A client with the scope `read`, where others need `write` or have `guest`.
    fn grant(can_step_up: bool) -> Grant {
        let read = PermissionSettings {
            scopes: texts(&["read"]),
            tools: texts(&["get_*"]),
            prompts: texts(&["p"]),
            resources: texts(&["x:/open/*"]),
            methods: texts(&["own/*"]),
            deny_tools: texts(&["get_secret"]),
            deny_methods: texts(&["logging/*"]),
            ..PermissionSettings::default()
        };
        let write = PermissionSettings {
            scopes: texts(&["write"]),
            tools: texts(&["set_*"]),
            resources: texts(&["x:/*"]),
            deny_resources: texts(&["x:/never/*"]),
            ..PermissionSettings::default()
        };
        let guest =
            PermissionSettings { deny_resources: texts(&["x:/open/not/*"]), ..Default::default() };
        let rules = [("read", read), ("write", write), ("guest", guest)];
        let permissions = rules.map(|(name, rule)| (name.to_owned(), rule)).into();
        let tenant = Tenant::new("acme", &Settings { permissions, ..Settings::open() }).unwrap();
        let scopes = Scopes::of(["read"]);
        let client = Attributes { scopes, ..Attributes::default() };
        Grant::new(&tenant.permissions.unwrap(), client, can_step_up)
    }

    fn body(text: &str) -> Posted {
        parse(Bytes::from(text.to_owned()), &Limits::default()).unwrap()
    }

    fn request(method: &str, params: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#)
    }

    /// What becomes of a message: `ok`, `403` with the scopes, or the text of the error.
    fn judged(can_step_up: bool, message: &str) -> String {
        match grant(can_step_up).judge(body(message)) {
            Ok(judged) if judged == body(message) => "ok".into(),
            Ok(judged) => format!("{judged:?}"),
            Err(NotPermitted::Needs(scopes, id)) => format!("403 {scopes} {}", id.is_some()),
            Err(NotPermitted::Refused(rejection)) => {
                assert_eq!(rejection.code, ErrorCode::InvalidParams);
                rejection.message.clone()
            }
        }
    }

    #[test]
    fn each_message_is_judged_by_what_it_names() {
        let none = |what: &str| format!("there is no such {what}");
        let ambiguous = Ambiguous.to_string();
        for (method, params, expected) in [
            ("tools/call", r#"{"name":"get_a"}"#, "ok".to_owned()),
            ("tools/call", r#"{"name":"get_secret"}"#, none("tool")),
            ("tools/call", r#"{"name":"other"}"#, none("tool")),
            ("tools/call", r#"{"name":"get_a","Name":"other"}"#, ambiguous.clone()),
            ("tools/call", r#"{"name":"set_a"}"#, "403 read write true".into()),
            ("prompts/get", r#"{"name":"p"}"#, "ok".into()),
            ("prompts/get", r#"{"name":"get_a"}"#, none("prompt")),
            ("resources/read", r#"{"uri":"x:/open/a"}"#, "ok".into()),
            ("resources/subscribe", r#"{"uri":"x:/open/not/a"}"#, none("resource")),
            // Each form of a URI counts, and of several the one that is denied.
            ("resources/read", r#"{"uri":"x:/open/%6eot/a"}"#, none("resource")),
            ("resources/read", r#"{"uri":"x:/open/../a"}"#, "403 read write true".into()),
            ("resources/read", r#"{"uri":"x:/open/../never/a"}"#, none("resource")),
            ("resources/read", r#"{"uri":"x:/open/%ff"}"#, ambiguous.clone()),
            ("completion/complete", r#"{"ref":{"name":"q"}}"#, none("prompt")),
            ("own/a", "{}", "ok".into()),
            ("other/a", "{}", none("method")),
            ("logging/setLevel", "{}", none("method")),
            ("tools/list", "{}", "ok".into()),
        ] {
            assert_eq!(judged(true, &request(method, params)), expected, "{method} {params}");
        }
        let needs = "this needs a credential with the scopes: read write";
        let set = request("tools/call", r#"{"name":"set_a"}"#);
        assert_eq!(judged(false, &set), needs, "a key gets no scopes");
        let notification = r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"other"}}"#;
        assert_eq!(judged(true, notification), none("tool"));
        assert_eq!(judged(true, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#), "ok");
    }

    #[test]
    fn a_client_that_may_use_no_method_opens_nothing_and_answers_nothing() {
        let grant = |denied: &str| {
            let deny_methods = texts(&[denied]);
            let rule = PermissionSettings { deny_methods, ..PermissionSettings::default() };
            let permissions = [("out".to_owned(), rule)].into();
            let settings = Settings { permissions, ..Settings::open() };
            let tenant = Tenant::new("acme", &settings).unwrap();
            Grant::new(&tenant.permissions.unwrap(), Attributes::default(), false)
        };
        let response = || body(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        for (denied, may_open, is_out) in
            [("*", false, true), ("initialize", false, false), ("tools/*", true, false)]
        {
            let grant = grant(denied);
            assert_eq!((grant.may_open(), grant.denies_all()), (may_open, is_out), "{denied}");
            assert_eq!(grant.judge(response()).is_err(), is_out, "{denied}");
        }
    }

    #[test]
    fn a_member_of_a_batch_that_is_not_permitted_becomes_an_error() {
        let call = |name: &str| request("tools/call", &format!(r#"{{"name":"{name}"}}"#));
        let batch = format!("[{},{},{},7]", call("get_a"), call("other"), call("set_a"));
        let Ok(Posted::Batch(judged)) = grant(true).judge(body(&batch)) else { panic!("{batch}") };
        let codes: Vec<_> = judged
            .iter()
            .map(|member| member.as_ref().err().map(|rejection| rejection.code.number()))
            .collect();
        assert_eq!(codes, [None, Some(-32602), Some(-32602), Some(-32600)]);
    }

    #[test]
    fn a_list_shows_what_may_be_used() {
        let shown = |list: &str, key: &str, names: &[&str]| {
            let entries: Vec<_> =
                names.iter().map(|name| format!(r#"{{"{key}":"{name}"}}"#)).collect();
            let entries = entries.join(",");
            let message =
                format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"{list}":[{entries}]}}}}"#);
            let filtered = grant(true).filter(message.into());
            let filtered: serde_json::Value = serde_json::from_slice(&filtered).unwrap();
            let all = filtered["result"][list].as_array().unwrap().clone();
            all.iter().map(|entry| entry[key].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let all = ["get_a", "get_secret", "set_a", "p", "other"];
        assert_eq!(shown("tools", "name", &all), ["get_a"]);
        assert_eq!(shown("prompts", "name", &all), ["p"]);
        let uris = ["x:/open/a", "x:/open/not/a", "x:/open/../a", "x:/a", "x:/open/%ff"];
        assert_eq!(shown("resources", "uri", &uris), ["x:/open/a"]);
        let templates = ["x:/open/{a}", "x:/{a}", "x:/a/{b}", "x:/open/not/{a}"];
        let templates = shown("resourceTemplates", "uriTemplate", &templates);
        assert_eq!(templates, ["x:/open/{a}", "x:/{a}"]);
    }

    #[test]
    fn a_grant_is_of_its_scopes_and_its_rules() {
        let (one, same) = (grant(true), grant(true));
        assert!(one.is_by(&same.permissions) && one.has_scopes(&Scopes::of(["read"])));
        assert!(
            !one.has_scopes(&Scopes::of(["read", "write"])) && !one.has_scopes(&Scopes::default())
        );
        let rule = [("other".to_owned(), PermissionSettings::default())].into();
        let other =
            Tenant::new("acme", &Settings { permissions: rule, ..Settings::open() }).unwrap();
        assert!(!one.is_by(&other.permissions.unwrap()));
    }
}

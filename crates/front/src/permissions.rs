//! What a client may do at an endpoint, and what it may see of it.
//!
//! Each message is judged where it arrives, before a session gets it. Lists are filtered where they leave
//! the node, by the scopes of the connection on which they leave: a list that is repeated on a resumed
//! stream, or that another node's session sends, is filtered as well.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    Ambiguous, Body as Posted, ErrorCode, Listed, Message, Named, Rejection, RequestId, named,
    uri_forms, without_entries,
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
        if method_of(message).is_some_and(|m| !permissions.allows_method(&self.client, m)) {
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

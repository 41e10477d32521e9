//! Which definitions of tools, prompts and instructions an operator has approved, by server.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use protocol::Listed;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::Fingerprint;

/// What a definition that is not the approved one leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pin {
    /// Definitions are not compared.
    #[default]
    Off,
    /// It is reported, and offered.
    Warn,
    /// It is reported, and not offered.
    Refuse,
}

/// The approved definitions of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerPins {
    /// That of its instructions; `None` if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<Fingerprint>,
    /// Those of its tools, by the server's own names.
    pub tools: BTreeMap<String, Fingerprint>,
    /// Those of its prompts.
    pub prompts: BTreeMap<String, Fingerprint>,
}

impl ServerPins {
    /// The approved definition of an entry. Only tools and prompts have some.
    fn of_entry(&self, listed: Listed, name: &str) -> Option<Fingerprint> {
        match listed {
            Listed::Tool => self.tools.get(name).copied(),
            Listed::Prompt => self.prompts.get(name).copied(),
            Listed::Resource | Listed::Template => None,
        }
    }
}

/// Whether definitions of one server are compared, and with which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// What a difference leads to.
    pub pin: Pin,
    /// The approved definitions.
    pub pins: Arc<ServerPins>,
}

impl Pinned {
    /// How an entry of a list differs from what is approved, if it does.
    pub(crate) fn difference(&self, listed: Listed, name: &str, raw: &str) -> Option<Difference> {
        if self.pin == Pin::Off {
            return None;
        }
        let found = Fingerprint::of_entry(listed, raw)?;
        let approved = self.pins.of_entry(listed, name);
        (approved != Some(found)).then(|| Difference {
            part: Part::Entry(listed),
            name: name.into(),
            approved,
            found,
            is_refused: self.pin == Pin::Refuse,
        })
    }

    /// How the instructions of the server differ from what is approved, if they do.
    pub(crate) fn difference_of_instructions(&self, text: &str) -> Option<Difference> {
        if self.pin == Pin::Off {
            return None;
        }
        let (found, approved) = (Fingerprint::of_instructions(text), self.pins.instructions);
        (approved != Some(found)).then(|| Difference {
            part: Part::Instructions,
            name: "".into(),
            approved,
            found,
            is_refused: self.pin == Pin::Refuse,
        })
    }

    /// Whether calls depend on what the server lists.
    pub(crate) fn refuses(&self) -> bool {
        self.pin == Pin::Refuse
    }

    /// Whether a definition of an entry with this name is approved.
    pub(crate) fn knows(&self, listed: Listed, name: &str) -> bool {
        self.pins.of_entry(listed, name).is_some()
    }
}

/// What of a server is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// An entry of this list.
    Entry(Listed),
    /// The instructions.
    Instructions,
}

impl Part {
    /// Its name in logs, records and errors.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Entry(Listed::Tool) => "tool",
            Self::Entry(Listed::Prompt) => "prompt",
            Self::Entry(Listed::Resource) => "resource",
            Self::Entry(Listed::Template) => "resource template",
            Self::Instructions => "instructions",
        }
    }
}

/// A definition of a server that is not the approved one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Difference {
    /// What it defines.
    pub part: Part,
    /// The server's own name of it; empty for instructions.
    pub name: Box<str>,
    /// The approved definition; `None` if there is none.
    pub approved: Option<Fingerprint>,
    /// The definition that the server sent.
    pub found: Fingerprint,
    /// Whether it is not offered.
    pub is_refused: bool,
}

/// A difference, for operators.
#[derive(Clone, Debug)]
pub struct Deviation {
    /// The tenant.
    pub tenant: Arc<str>,
    /// The name of the backend.
    pub backend: Arc<str>,
    /// What differs.
    pub difference: Difference,
}

/// Gets each difference once. It must not wait.
pub type Observer = Arc<dyn Fn(Deviation) + Send + Sync>;

/// How the definitions of a tenant's servers are compared with what is approved.
pub struct Pinning {
    /// What is approved.
    pub pins: TenantPins,
    /// Gets the differences.
    pub observer: Observer,
}

impl Pinning {
    /// No definition of the servers with these names is compared.
    pub fn off(servers: impl IntoIterator<Item = Arc<str>>) -> Self {
        let pins = TenantPins::new(servers.into_iter().map(|name| (name, Pinned::default())));
        Self { pins, observer: Arc::new(|_| {}) }
    }
}

/// The pins of a tenant's servers, by name. They can change while sessions use them. Cheap to clone; all
/// clones are of the same pins.
#[derive(Clone)]
pub struct TenantPins(Arc<ByName>);

/// As [`TenantPins`], and kept by catalogs and sessions only.
#[derive(Clone)]
pub struct WeakPins(Weak<ByName>);

struct ByName {
    /// In order.
    names: Vec<Arc<str>>,
    /// In the order of the names.
    pins: watch::Sender<Arc<[Pinned]>>,
}

impl TenantPins {
    /// The pins of these servers.
    pub fn new(servers: impl IntoIterator<Item = (Arc<str>, Pinned)>) -> Self {
        let servers: BTreeMap<_, _> = servers.into_iter().collect();
        let (names, pins): (_, Vec<_>) = servers.into_iter().unzip();
        Self(Arc::new(ByName { names, pins: watch::Sender::new(pins.into()) }))
    }

    /// Uses the pins of `newer` from now on, also in sessions that are open. A server whose name `newer`
    /// does not have keeps its pins. Returns whether any differs.
    pub fn replace_by(&self, newer: &Self) -> bool {
        let pins = Arc::clone(&newer.0.pins.borrow());
        let newer: BTreeMap<_, _> = newer.0.names.iter().zip(&*pins).collect();
        self.0.pins.send_if_modified(|former| {
            let with_names = self.0.names.iter().zip(&**former);
            let replaced = with_names.map(|(name, former)| *newer.get(name).unwrap_or(&former));
            let replaced: Vec<_> = replaced.cloned().collect();
            let differs = **former != *replaced;
            if differs {
                *former = replaced.into();
            }
            differs
        })
    }

    /// These pins, for as long as a catalog or a session has them.
    pub fn downgrade(&self) -> WeakPins {
        WeakPins(Arc::downgrade(&self.0))
    }

    /// The names of the servers, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.names.iter()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<[Pinned]>> {
        self.0.pins.subscribe()
    }
}

impl WeakPins {
    /// The pins; `None` once no catalog and no session has them.
    pub fn upgrade(&self) -> Option<TenantPins> {
        self.0.upgrade().map(TenantPins)
    }
}

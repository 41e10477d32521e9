//! Which definitions of tools, prompts and instructions an operator has approved, by server.

use std::collections::BTreeMap;
use std::sync::Arc;

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
    /// No definition of so many servers is compared.
    pub fn off(servers: usize) -> Self {
        let pins = TenantPins::new(vec![Pinned::default(); servers]);
        Self { pins, observer: Arc::new(|_| {}) }
    }
}

/// The pins of a tenant's servers, in the order of their names. They can change while sessions use them.
/// Cheap to clone; all clones are of the same pins.
#[derive(Clone)]
pub struct TenantPins(watch::Sender<Arc<[Pinned]>>);

impl TenantPins {
    /// The pins of servers in the order of their names.
    pub fn new(servers: impl IntoIterator<Item = Pinned>) -> Self {
        Self(watch::Sender::new(servers.into_iter().collect()))
    }

    /// Uses the pins of `newer` from now on, also in sessions that are open. Those of another number of
    /// servers are not of the same tenant's settings, and are left. Returns whether they differ.
    pub fn replace_by(&self, newer: &Self) -> bool {
        let newer = Arc::clone(&newer.0.borrow());
        self.0.send_if_modified(|pins| {
            let differs = *pins != newer && pins.len() == newer.len();
            if differs {
                *pins = newer;
            }
            differs
        })
    }

    /// The number of servers.
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<[Pinned]>> {
        self.0.subscribe()
    }
}

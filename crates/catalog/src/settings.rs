//! How a backend takes part in the catalog of its tenant, as the operator wrote it.

use serde::{Deserialize, Serialize};
use tenants::{PATTERN_BYTES_MAX, Pattern};

use crate::member::{Kind, Rules, SEPARATOR};
use crate::pins::Pin;

/// Longest prefix, in bytes: clients add one of their own, and a name has 64 bytes.
const PREFIX_BYTES_MAX: usize = 24;

/// Most patterns of one list.
const PATTERNS_MAX: usize = 1_000;

/// How a backend takes part in the catalog of its tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct MemberSettings {
    /// What the names of its tools and prompts begin with, before `__`. Empty: they stay as they are.
    /// If not set, the name of the backend if the tenant has several, and otherwise none.
    pub prefix: Option<String>,
    /// Tools that are offered, by the server's own names, in which `*` stands for any text. Empty: all.
    pub allow_tools: Vec<String>,
    /// Tools that are not offered. They take precedence.
    pub deny_tools: Vec<String>,
    /// Prompts that are offered, likewise.
    pub allow_prompts: Vec<String>,
    /// Prompts that are not offered.
    pub deny_prompts: Vec<String>,
    /// Resources that are offered, by URI.
    pub allow_resources: Vec<String>,
    /// Resources that are not offered.
    pub deny_resources: Vec<String>,
    /// What a tool, a prompt or instructions lead to whose definition is not the one in `node.pins_dir`.
    pub pin: Pin,
}

impl MemberSettings {
    /// Whether the settings are those of a backend that is offered as it is.
    pub fn is_plain(&self) -> bool {
        self.prefix.as_deref().is_none_or(str::is_empty)
            && Self { prefix: None, ..self.clone() } == Self::default()
    }

    /// What identifies the backend beside its server. `pin` does not: the sessions of clients and servers go on
    /// when it changes.
    pub fn identity(&self) -> serde_json::Value {
        let Self {
            prefix,
            allow_tools,
            deny_tools,
            allow_prompts,
            deny_prompts,
            allow_resources,
            deny_resources,
            pin: _,
        } = self;
        serde_json::json!({
            "prefix": prefix,
            "allow_tools": allow_tools,
            "deny_tools": deny_tools,
            "allow_prompts": allow_prompts,
            "deny_prompts": deny_prompts,
            "allow_resources": allow_resources,
            "deny_resources": deny_resources,
        })
    }

    /// The prefix of a backend with this name, which is one of several or the only one.
    pub(crate) fn prefix_of<'a>(&'a self, name: &'a str, is_only: bool) -> &'a str {
        match &self.prefix {
            Some(prefix) => prefix,
            None if is_only => "",
            None => name,
        }
    }

    /// What may be offered, or everything that is wrong with the patterns.
    pub(crate) fn rules(&self) -> Result<Rules, Vec<String>> {
        let mut wrong = Vec::new();
        let mut patterns = |key: &str, texts: &[String]| {
            if texts.len() > PATTERNS_MAX {
                wrong.push(format!(
                    "has {} patterns in `{key}`, more than {PATTERNS_MAX}; join some of them with `*`",
                    texts.len()
                ));
            }
            let fits = |text: &&String| !text.is_empty() && text.len() <= PATTERN_BYTES_MAX;
            for text in texts.iter().filter(|text| !fits(text)) {
                wrong.push(format!(
                    "has {:?} in `{key}`; write names of 1 to {PATTERN_BYTES_MAX} bytes, in which `*` \
                     stands for any text",
                    text.chars().take(40).collect::<String>()
                ));
            }
            texts.iter().map(|text| Pattern::new(text)).collect()
        };
        let rules = Rules {
            allow: [
                patterns("allow_tools", &self.allow_tools),
                patterns("allow_prompts", &self.allow_prompts),
                patterns("allow_resources", &self.allow_resources),
            ],
            deny: [
                patterns("deny_tools", &self.deny_tools),
                patterns("deny_prompts", &self.deny_prompts),
                patterns("deny_resources", &self.deny_resources),
            ],
        };
        debug_assert!(Kind::Resource as usize + 1 == rules.allow.len());
        if wrong.is_empty() { Ok(rules) } else { Err(wrong) }
    }
}

/// What is wrong with a prefix.
pub(crate) fn wrong_prefix(prefix: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if prefix.len() > PREFIX_BYTES_MAX {
        return Some(format!(
            "is longer than {PREFIX_BYTES_MAX} bytes, which leaves too little of the 64 that the name of \
             a tool may have; write a shorter `prefix`"
        ));
    }
    let is_wrong = !prefix.chars().all(is_plain)
        || prefix.contains(SEPARATOR)
        || prefix.starts_with('_')
        || prefix.ends_with('_');
    is_wrong.then(|| {
        "cannot be part of the name of a tool; write a `prefix` of letters, digits, `-` and `_`, that has \
         no `__` and neither begins nor ends with `_`"
            .to_owned()
    })
}

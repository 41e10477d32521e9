//! What a client may do at an endpoint: rules that give scopes to tools, prompts, resources and methods.
//!
//! Without rules a client may do everything. With rules it may do what one of the rules that apply to
//! it allows, and none of them denies. A rule applies to the clients that have all of its scopes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::pattern::{PATTERN_BYTES_MAX, Pattern};
use crate::scopes::is_scope;
use crate::{Error, Scopes};

/// Most rules of one tenant.
const RULES_MAX: usize = 256;

/// Most patterns of one rule.
const PATTERNS_MAX: usize = 1_000;

/// The settings of one rule.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PermissionSettings {
    /// The rule applies to clients with all of these scopes. Empty: to every client.
    pub scopes: Vec<String>,
    /// Tools that these clients may see and call: names, in which `*` stands for any text.
    pub tools: Vec<String>,
    /// Prompts that they may see and get.
    pub prompts: Vec<String>,
    /// Resources that they may see, read and subscribe to, by URI.
    pub resources: Vec<String>,
    /// Methods that they may use beside those of MCP.
    pub methods: Vec<String>,
    /// Tools that they must not see or call. A denial takes precedence over each rule that allows.
    pub deny_tools: Vec<String>,
    /// Prompts that they must not see or get.
    pub deny_prompts: Vec<String>,
    /// Resources that they must not see, read or subscribe to.
    pub deny_resources: Vec<String>,
    /// Methods that they must not use, those of MCP included.
    pub deny_methods: Vec<String>,
}

/// What a permission is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tool.
    Tool = 0,
    /// A prompt.
    Prompt = 1,
    /// A resource.
    Resource = 2,
    /// A method that is none of MCP's.
    Method = 3,
}

/// Whether a client may do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It may.
    Allowed,
    /// It may with these scopes, of which it lacks some.
    Needs(Scopes),
    /// It may not.
    Denied,
}

/// The rules of a tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct Permissions(Vec<Rule>);

#[derive(Clone, Debug, PartialEq)]
struct Rule {
    scopes: Scopes,
    /// By [`Kind`].
    allow: [Vec<Pattern>; 4],
    deny: [Vec<Pattern>; 4],
}

impl Permissions {
    /// The rules of these settings, or all errors in them; `None` without any.
    pub(crate) fn new(
        tenant: &str,
        written: &BTreeMap<String, PermissionSettings>,
    ) -> Result<Option<Self>, Vec<Error>> {
        let mut wrong = Vec::new();
        if written.len() > RULES_MAX {
            wrong.push(Error::TooManyRules { name: tenant.into(), max: RULES_MAX });
        }
        let rules = written.iter().map(|(name, rule)| Rule::new(tenant, name, rule, &mut wrong));
        let rules: Vec<Rule> = rules.collect();
        match (wrong.is_empty(), rules.is_empty()) {
            (false, _) => Err(wrong),
            (true, true) => Ok(None),
            (true, false) => Ok(Some(Self(rules))),
        }
    }

    /// Whether a client with these scopes may do something with this tool, prompt, resource or method.
    pub fn judge(&self, scopes: &Scopes, kind: Kind, name: &str) -> Judgement {
        let at = kind as usize;
        let fits = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.fits(name));
        let mut is_allowed = false;
        for rule in self.rules_of(scopes) {
            if fits(&rule.deny[at]) {
                return Judgement::Denied;
            }
            is_allowed |= fits(&rule.allow[at]);
        }
        if is_allowed {
            return Judgement::Allowed;
        }
        let would = self.0.iter().find(|rule| fits(&rule.allow[at]) && !fits(&rule.deny[at]));
        match would {
            // A client that asks its issuer for these alone must not lose those that it has.
            Some(rule) => {
                let known = self.scopes();
                let kept = scopes.iter().filter(|scope| known.has(scope));
                let needed = Scopes::of(rule.scopes.iter().chain(kept));
                // Another rule for these scopes may deny it.
                let denies = self.rules_of(&needed).any(|rule| fits(&rule.deny[at]));
                if denies { Judgement::Denied } else { Judgement::Needs(needed) }
            }
            None => Judgement::Denied,
        }
    }

    /// All scopes that the rules name.
    pub fn scopes(&self) -> Scopes {
        Scopes::of(self.0.iter().flat_map(|rule| rule.scopes.iter()))
    }

    /// Whether a client with these scopes may use this method of MCP.
    pub fn allows_method(&self, scopes: &Scopes, method: &str) -> bool {
        let denies =
            |rule: &Rule| rule.deny[Kind::Method as usize].iter().any(|deny| deny.fits(method));
        !self.rules_of(scopes).any(denies)
    }

    /// Whether a client with these scopes may do something with a resource whose URI begins like this.
    pub fn may_allow_resource(&self, scopes: &Scopes, begin: &str) -> bool {
        let at = Kind::Resource as usize;
        let mut denied = self.rules_of(scopes).flat_map(|rule| &rule.deny[at]);
        let mut allowed = self.rules_of(scopes).flat_map(|rule| &rule.allow[at]);
        !denied.any(|pattern| pattern.fits_all(begin))
            && allowed.any(|pattern| pattern.may_fit(begin))
    }

    fn rules_of<'a>(&'a self, scopes: &Scopes) -> impl Iterator<Item = &'a Rule> {
        self.0.iter().filter(|rule| scopes.has_all(&rule.scopes))
    }
}

impl Rule {
    fn new(tenant: &str, name: &str, written: &PermissionSettings, wrong: &mut Vec<Error>) -> Self {
        let mut add = |key: &'static str, written: &str, remedy: &'static str| {
            let (tenant, name, written) = (tenant.to_owned(), name.to_owned(), written.to_owned());
            wrong.push(Error::Permission { tenant, name, key, written, remedy });
        };
        for scope in written.scopes.iter().filter(|scope| !is_scope(scope)) {
            add(
                "scopes",
                scope,
                "write each scope as a word of its own, as in [\"mcp\", \"tools\"]",
            );
        }
        let mut patterns = |key: &'static str, texts: &[String]| {
            if texts.len() > PATTERNS_MAX {
                add(key, "a list of more than 1,000", "join some of them with `*`");
            }
            for text in texts {
                if text.is_empty() || text.len() > PATTERN_BYTES_MAX {
                    add(
                        key,
                        text,
                        "write names of 1 to 512 bytes, in which `*` stands for any text",
                    );
                }
            }
            texts.iter().map(|text| Pattern::new(text)).collect()
        };
        let allow = [
            patterns("tools", &written.tools),
            patterns("prompts", &written.prompts),
            patterns("resources", &written.resources),
            patterns("methods", &written.methods),
        ];
        let deny = [
            patterns("deny_tools", &written.deny_tools),
            patterns("deny_prompts", &written.deny_prompts),
            patterns("deny_resources", &written.deny_resources),
            patterns("deny_methods", &written.deny_methods),
        ];
        Self { scopes: Scopes::of(written.scopes.iter().map(String::as_str)), allow, deny }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|text| (*text).to_owned()).collect()
    }

    fn permissions() -> Permissions {
        let all = PermissionSettings {
            tools: texts(&["echo"]),
            deny_methods: texts(&["logging/*"]),
            ..PermissionSettings::default()
        };
        let read = PermissionSettings {
            scopes: texts(&["read"]),
            tools: texts(&["get_*", "list_*"]),
            resources: texts(&["x:/public/*"]),
            deny_tools: texts(&["get_secret"]),
            deny_resources: texts(&["x:/public/not/*"]),
            ..PermissionSettings::default()
        };
        let write = PermissionSettings {
            scopes: texts(&["read", "write"]),
            tools: texts(&["*"]),
            methods: texts(&["own/*"]),
            ..PermissionSettings::default()
        };
        let rules = [("all", all), ("read", read), ("write", write)];
        let rules = rules.map(|(name, rule)| (name.to_owned(), rule)).into();
        Permissions::new("acme", &rules).unwrap().unwrap()
    }

    #[test]
    fn a_client_may_do_what_a_rule_of_its_scopes_allows_and_none_denies() {
        let permissions = permissions();
        let needs = |scopes: &[&str]| Judgement::Needs(Scopes::of(scopes.iter().copied()));
        for (scopes, tool, expected) in [
            ("", "echo", Judgement::Allowed),
            ("", "get_a", needs(&["read"])),
            ("", "set_a", needs(&["read", "write"])),
            ("", "get_secret", Judgement::Denied),
            ("read", "get_a", Judgement::Allowed),
            ("read", "set_a", needs(&["read", "write"])),
            ("read", "get_secret", Judgement::Denied),
            ("read write", "set_a", Judgement::Allowed),
            ("read write", "get_secret", Judgement::Denied),
            ("write", "set_a", needs(&["read", "write"])),
        ] {
            let found = permissions.judge(&Scopes::of(scopes.split(' ')), Kind::Tool, tool);
            assert_eq!(found, expected, "{scopes} {tool}");
        }
        let none = Scopes::default();
        assert_eq!(permissions.judge(&none, Kind::Prompt, "p"), Judgement::Denied);
        assert!(!permissions.allows_method(&none, "logging/setLevel"));
        assert!(permissions.allows_method(&none, "tools/list"));
        let read = Scopes::of(["read"]);
        assert!(permissions.may_allow_resource(&read, "x:/"));
        assert!(!permissions.may_allow_resource(&read, "y:/"));
        assert!(permissions.may_allow_resource(&read, "x:/public/"));
        assert!(!permissions.may_allow_resource(&read, "x:/public/not/"));
        assert!(!permissions.may_allow_resource(&none, "x:/"));
    }

    #[test]
    fn wrong_rules_are_named_all_at_once() {
        let rule = PermissionSettings {
            scopes: texts(&["two words"]),
            tools: texts(&[""]),
            deny_resources: vec!["x".repeat(513)],
            ..PermissionSettings::default()
        };
        let wrong = Permissions::new("acme", &[("r".to_owned(), rule)].into()).unwrap_err();
        let text = wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert_eq!(wrong.len(), 3, "{text}");
        assert!(text.contains("`tenants.acme.permissions.r.deny_resources`"), "{text}");
    }
}

//! What a client may do at an endpoint: rules that give scopes and claims to tools, prompts, resources and
//! methods.
//!
//! Without rules a client may do everything. With rules it may do what one of the rules that apply to
//! it allows, and none of them denies. A rule applies to the clients that have all of its scopes, and
//! one of the values of each of its claims.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::pattern::{PATTERN_BYTES_MAX, Pattern};
use crate::scopes::is_scope;
use crate::{ClaimValues, Error, Scopes};

/// Most rules of one tenant.
const RULES_MAX: usize = 256;

/// Most patterns of one rule.
const PATTERNS_MAX: usize = 1_000;

/// Most values of claims of one rule.
const CLAIM_VALUES_MAX: usize = 100;

/// Most bytes of the name of a claim, and of a value.
const CLAIM_BYTES_MAX: usize = 256;

/// The settings of one rule.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PermissionSettings {
    /// The rule applies to clients with all of these scopes. Empty: to every client.
    pub scopes: Vec<String>,
    /// The rule applies to clients with tokens in which each of these claims is, or contains, one of its
    /// values. Empty: to every client.
    pub claims: BTreeMap<String, Vec<String>>,
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

/// What a credential says of its client, beside who the client is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The scopes of the key or of the token.
    pub scopes: Scopes,
    /// The values of the token's claims, of those that rules name.
    pub claims: ClaimValues,
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
    claims: BTreeMap<String, Vec<String>>,
    /// By [`Kind`].
    allow: [Vec<Pattern>; 4],
    deny: [Vec<Pattern>; 4],
}

impl Permissions {
    /// The rules of these settings, or all errors in them; `None` without any. `has_tokens`: whether
    /// clients may have tokens, which have claims.
    pub(crate) fn new(
        tenant: &str,
        written: &BTreeMap<String, PermissionSettings>,
        has_tokens: bool,
    ) -> Result<Option<Self>, Vec<Error>> {
        let mut wrong = Vec::new();
        if written.len() > RULES_MAX {
            wrong.push(Error::TooManyRules { name: tenant.into(), max: RULES_MAX });
        }
        for (name, rule) in written {
            if !rule.claims.is_empty() && !has_tokens {
                wrong.push(Error::ClaimsWithoutTokens { tenant: tenant.into(), name: name.into() });
            }
        }
        let rules = written.iter().map(|(name, rule)| Rule::new(tenant, name, rule, &mut wrong));
        let rules: Vec<Rule> = rules.collect();
        match (wrong.is_empty(), rules.is_empty()) {
            (false, _) => Err(wrong),
            (true, true) => Ok(None),
            (true, false) => Ok(Some(Self(rules))),
        }
    }

    /// Whether a client with these attributes may do something with this tool, prompt, resource or method.
    pub fn judge(&self, client: &Attributes, kind: Kind, name: &str) -> Judgement {
        let at = kind as usize;
        let fits = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.fits(name));
        let mut is_allowed = false;
        for rule in self.rules_of(client) {
            if fits(&rule.deny[at]) {
                return Judgement::Denied;
            }
            is_allowed |= fits(&rule.allow[at]);
        }
        if is_allowed {
            return Judgement::Allowed;
        }
        // A client can ask its issuer for scopes, and not for other claims.
        let would = |rule: &&Rule| {
            rule.has_claims_of(client) && fits(&rule.allow[at]) && !fits(&rule.deny[at])
        };
        match self.0.iter().find(would) {
            // A client that asks its issuer for these alone must not lose those that it has.
            Some(rule) => {
                let known = self.scopes();
                let kept = client.scopes.iter().filter(|scope| known.has(scope));
                let scopes = Scopes::of(rule.scopes.iter().chain(kept));
                // Another rule for these scopes may deny it.
                let then = Attributes { scopes, claims: client.claims.clone() };
                let denies = self.rules_of(&then).any(|rule| fits(&rule.deny[at]));
                if denies { Judgement::Denied } else { Judgement::Needs(then.scopes) }
            }
            None => Judgement::Denied,
        }
    }

    /// All scopes that the rules name.
    pub fn scopes(&self) -> Scopes {
        Scopes::of(self.0.iter().flat_map(|rule| rule.scopes.iter()))
    }

    /// All values of claims that the rules name.
    pub fn claims(&self) -> ClaimValues {
        let claims = self.0.iter().flat_map(|rule| &rule.claims);
        let pairs = claims.flat_map(|(claim, values)| values.iter().map(|v| (&**claim, &**v)));
        ClaimValues::of(pairs)
    }

    /// Whether a client with these attributes may use this method of MCP.
    pub fn allows_method(&self, client: &Attributes, method: &str) -> bool {
        let denies =
            |rule: &Rule| rule.deny[Kind::Method as usize].iter().any(|deny| deny.fits(method));
        !self.rules_of(client).any(denies)
    }

    /// Whether a rule denies a client with these attributes every method.
    pub fn denies_all_methods(&self, client: &Attributes) -> bool {
        let mut denied = self.rules_of(client).flat_map(|rule| &rule.deny[Kind::Method as usize]);
        denied.any(|pattern| pattern.fits_all(""))
    }

    /// Whether a client with these attributes may do something with a resource whose URI begins like
    /// this.
    pub fn may_allow_resource(&self, client: &Attributes, begin: &str) -> bool {
        let at = Kind::Resource as usize;
        let mut denied = self.rules_of(client).flat_map(|rule| &rule.deny[at]);
        let mut allowed = self.rules_of(client).flat_map(|rule| &rule.allow[at]);
        !denied.any(|pattern| pattern.fits_all(begin))
            && allowed.any(|pattern| pattern.may_fit(begin))
    }

    fn rules_of<'a>(&'a self, client: &Attributes) -> impl Iterator<Item = &'a Rule> {
        let applies =
            |rule: &&Rule| client.scopes.has_all(&rule.scopes) && rule.has_claims_of(client);
        self.0.iter().filter(applies)
    }
}

impl Rule {
    /// Whether the client has one of the values of each claim.
    fn has_claims_of(&self, client: &Attributes) -> bool {
        self.claims
            .iter()
            .all(|(claim, values)| values.iter().any(|value| client.claims.has(claim, value)))
    }

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
        let fits = |text: &str| !text.is_empty() && text.len() <= CLAIM_BYTES_MAX;
        const TEXT: &str = "write names and values of 1 to 256 bytes";
        for (claim, values) in &written.claims {
            if values.is_empty() {
                add(
                    "claims",
                    claim,
                    "write the values of that claim, as in { groups = [\"admins\"] }",
                );
            }
            let texts = values.iter().chain([claim]);
            texts.filter(|text| !fits(text)).for_each(|text| add("claims", text, TEXT));
        }
        if written.claims.values().map(Vec::len).sum::<usize>() > CLAIM_VALUES_MAX {
            add("claims", "more than 100 values", "divide them among several rules");
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
        let scopes = Scopes::of(written.scopes.iter().map(String::as_str));
        Self { scopes, claims: written.claims.clone(), allow, deny }
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
        Permissions::new("acme", &rules, true).unwrap().unwrap()
    }

    fn with_scopes(scopes: &str) -> Attributes {
        Attributes { scopes: Scopes::of(scopes.split(' ')), claims: ClaimValues::default() }
    }

    #[test]
    fn a_rule_with_claims_applies_to_tokens_that_have_one_value_of_each() {
        let values = |claim: &str, all: &[&str]| (claim.to_owned(), texts(all));
        let staff = PermissionSettings {
            claims: [values("groups", &["staff", "admins"]), values("verified", &["true"])].into(),
            tools: texts(&["get_*"]),
            ..PermissionSettings::default()
        };
        let admin = PermissionSettings {
            claims: [values("groups", &["admins"])].into(),
            scopes: texts(&["write"]),
            tools: texts(&["set_*"]),
            ..PermissionSettings::default()
        };
        let suspended = PermissionSettings {
            claims: [values("groups", &["suspended"])].into(),
            deny_tools: texts(&["*"]),
            ..PermissionSettings::default()
        };
        let rules = [("staff", staff), ("admin", admin), ("suspended", suspended)];
        let rules = rules.map(|(name, rule)| (name.to_owned(), rule)).into();
        let permissions = Permissions::new("acme", &rules, true).unwrap().unwrap();
        assert_eq!(permissions.claims().claims().collect::<Vec<_>>(), ["groups", "verified"]);
        let write = Judgement::Needs(Scopes::of(["write"]));
        for (groups, verified, tool, expected) in [
            ("staff", "true", "get_a", Judgement::Allowed),
            ("admins", "true", "get_a", Judgement::Allowed),
            ("staff", "false", "get_a", Judgement::Denied),
            ("other", "true", "get_a", Judgement::Denied),
            // Further scopes help only a client with the claim.
            ("admins", "true", "set_a", write),
            ("staff", "true", "set_a", Judgement::Denied),
            ("staff suspended", "true", "get_a", Judgement::Denied),
            ("admins suspended", "true", "set_a", Judgement::Denied),
        ] {
            let pairs = groups.split(' ').map(|group| ("groups", group));
            let claims = ClaimValues::of(pairs.chain([("verified", verified)]));
            let client = Attributes { claims, ..Attributes::default() };
            let found = permissions.judge(&client, Kind::Tool, tool);
            assert_eq!(found, expected, "{groups} {verified} {tool}");
        }
        let key = with_scopes("write");
        assert_eq!(permissions.judge(&key, Kind::Tool, "get_a"), Judgement::Denied);
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
            let found = permissions.judge(&with_scopes(scopes), Kind::Tool, tool);
            assert_eq!(found, expected, "{scopes} {tool}");
        }
        let none = Attributes::default();
        assert_eq!(permissions.judge(&none, Kind::Prompt, "p"), Judgement::Denied);
        assert!(!permissions.allows_method(&none, "logging/setLevel"));
        assert!(permissions.allows_method(&none, "tools/list"));
        let read = with_scopes("read");
        assert!(permissions.may_allow_resource(&read, "x:/"));
        assert!(!permissions.may_allow_resource(&read, "y:/"));
        assert!(permissions.may_allow_resource(&read, "x:/public/"));
        assert!(!permissions.may_allow_resource(&read, "x:/public/not/"));
        assert!(!permissions.may_allow_resource(&none, "x:/"));
    }

    /// A client that asks its issuer for what is needed keeps what it has, and can do it then.
    #[test]
    fn the_needed_scopes_are_enough_and_leave_out_what_no_rule_names() {
        let rule = |scopes: &[&str], tools: &[&str], denied: &[&str]| PermissionSettings {
            scopes: texts(scopes),
            tools: texts(tools),
            deny_tools: texts(denied),
            ..PermissionSettings::default()
        };
        let rules = [
            // Allows a tool, and denies it.
            ("a", rule(&["a"], &["*"], &["x", "y"])),
            ("b", rule(&["b"], &["x"], &[])),
            ("c", rule(&["c"], &["z"], &[])),
            ("d", of_guests()),
        ];
        let rules = rules.map(|(name, rule)| (name.to_owned(), rule)).into();
        let permissions = Permissions::new("acme", &rules, true).unwrap().unwrap();
        let judged = |client: &Attributes, tool: &str| permissions.judge(client, Kind::Tool, tool);
        let needs = |scopes: &[&str]| Judgement::Needs(Scopes::of(scopes.iter().copied()));
        assert_eq!(judged(&with_scopes(""), "x"), needs(&["b"]));
        assert_eq!(judged(&with_scopes("openid c"), "x"), needs(&["b", "c"]));
        assert_eq!(judged(&with_scopes("a"), "x"), Judgement::Denied, "also with `b`");
        assert_eq!(judged(&with_scopes(""), "y"), Judgement::Denied);
        assert_eq!(judged(&with_scopes(""), "z"), needs(&["a"]));
        let claims = ClaimValues::of([("groups", "guests")]);
        let guest = Attributes { claims, ..with_scopes("b") };
        assert_eq!(judged(&guest, "z"), needs(&["a", "b"]), "the first rule that helps");
        let only_c = [("c", rule(&["c"], &["z"], &[])), ("d", of_guests())];
        let only_c = only_c.map(|(name, rule)| (name.to_owned(), rule)).into();
        let permissions = Permissions::new("acme", &only_c, true).unwrap().unwrap();
        assert_eq!(
            permissions.judge(&guest, Kind::Tool, "z"),
            Judgement::Denied,
            "its claim stays"
        );
        assert_eq!(permissions.judge(&with_scopes("b"), Kind::Tool, "z"), needs(&["c"]));
    }

    /// Denies a tool to guests with a scope.
    fn of_guests() -> PermissionSettings {
        PermissionSettings {
            scopes: texts(&["c"]),
            claims: [("groups".to_owned(), texts(&["guests"]))].into(),
            deny_tools: texts(&["z"]),
            ..PermissionSettings::default()
        }
    }

    #[test]
    fn each_list_is_about_its_own_kind_and_methods_are_denied_to_whom_a_rule_applies() {
        let rule = PermissionSettings {
            tools: texts(&["t*"]),
            prompts: texts(&["p*"]),
            resources: texts(&["r*"]),
            methods: texts(&["m*"]),
            deny_tools: texts(&["t-"]),
            deny_prompts: texts(&["p-"]),
            deny_resources: texts(&["r-"]),
            deny_methods: texts(&["m-"]),
            ..PermissionSettings::default()
        };
        let guest = PermissionSettings {
            scopes: texts(&["guest"]),
            deny_methods: texts(&["tools/*"]),
            ..PermissionSettings::default()
        };
        let rules = [("all", rule), ("guest", guest)];
        let rules = rules.map(|(name, rule)| (name.to_owned(), rule)).into();
        let permissions = Permissions::new("acme", &rules, true).unwrap().unwrap();
        let client = Attributes::default();
        let kinds =
            [(Kind::Tool, "t"), (Kind::Prompt, "p"), (Kind::Resource, "r"), (Kind::Method, "m")];
        for (kind, own) in kinds {
            for (_, letter) in kinds {
                let allowed = permissions.judge(&client, kind, letter) == Judgement::Allowed;
                assert_eq!(allowed, letter == own, "{kind:?} {letter}");
            }
            let denied = permissions.judge(&client, kind, &format!("{own}-"));
            assert_eq!(denied, Judgement::Denied, "{kind:?}");
        }
        let guest = with_scopes("guest");
        assert!(permissions.allows_method(&client, "tools/list"));
        assert!(!permissions.allows_method(&guest, "tools/list"));
        assert!(!permissions.allows_method(&guest, "m-"));
        assert!(permissions.allows_method(&guest, "prompts/list"));
    }

    #[test]
    fn rules_are_bounded() {
        let named = |count: usize| -> Vec<String> { (0..count).map(|n| n.to_string()).collect() };
        let count_wrong = |rules: &BTreeMap<String, PermissionSettings>| {
            Permissions::new("acme", rules, true).err().map_or(0, |wrong| wrong.len())
        };
        let rule = |tools: usize, values: usize| {
            let claims = [("groups".to_owned(), named(values))].into();
            let tools = named(tools);
            let rule = PermissionSettings { claims, tools, ..PermissionSettings::default() };
            BTreeMap::from([("r".to_owned(), rule)])
        };
        assert_eq!(count_wrong(&rule(PATTERNS_MAX, CLAIM_VALUES_MAX)), 0);
        assert_eq!(count_wrong(&rule(PATTERNS_MAX + 1, 1)), 1);
        assert_eq!(count_wrong(&rule(1, CLAIM_VALUES_MAX + 1)), 1);
        let rules = |count| named(count).into_iter().map(|name| (name, Default::default()));
        assert_eq!(count_wrong(&rules(RULES_MAX).collect()), 0);
        assert_eq!(count_wrong(&rules(RULES_MAX + 1).collect()), 1);
    }

    #[test]
    fn wrong_rules_are_named_all_at_once() {
        let rule = PermissionSettings {
            scopes: texts(&["two words"]),
            tools: texts(&[""]),
            deny_resources: vec!["x".repeat(513)],
            ..PermissionSettings::default()
        };
        let claims = [("groups".to_owned(), vec![]), ("".to_owned(), texts(&["a"]))];
        let rule = PermissionSettings { claims: claims.into(), ..rule };
        let wrong = Permissions::new("acme", &[("r".to_owned(), rule)].into(), false).unwrap_err();
        let text = wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert_eq!(wrong.len(), 6, "{text}");
        assert!(text.contains("`tenants.acme.permissions.r.deny_resources`"), "{text}");
    }
}

//! One backend of a catalog: the names that its tools and prompts have there, and what it may offer.

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::{Listed, uri_forms};
use tenants::Pattern;

use crate::MemberSettings;
use crate::settings::wrong_prefix;

/// What stands between a prefix and the server's own name.
pub(crate) const SEPARATOR: &str = "__";

/// Longest name of a tool or prompt with its prefix: models accept no longer ones.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Most backends of one tenant.
pub const MEMBERS_MAX: usize = 64;

/// The backends of one tenant, in the order of their names, which decides between equal resources.
pub struct Members(Vec<Member>);

/// One backend of a catalog.
pub(crate) struct Member {
    pub(crate) name: Arc<str>,
    /// With the separator, or empty.
    pub(crate) prefix: Box<str>,
    rules: Rules,
}

/// What rules are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tool = 0,
    Prompt = 1,
    Resource = 2,
}

/// What a backend may offer.
#[derive(Debug)]
pub(crate) struct Rules {
    /// By [`Kind`]; empty: everything.
    pub(crate) allow: [Vec<Pattern>; 3],
    pub(crate) deny: [Vec<Pattern>; 3],
}

/// Why an entry of a server's list is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    /// It has no name that can be read, or two.
    Unnamed,
    /// The settings of the backend deny it.
    Denied,
    /// Its name with the prefix is too long.
    TooLong,
    /// An entry with the same name is offered.
    Collides,
    /// The list is longer than a list may be, or the lists of all backends are.
    TooMany,
}

impl LeftOut {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::Unnamed, Self::Denied, Self::TooLong, Self::Collides, Self::TooMany];

    /// The label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unnamed => "unnamed",
            Self::Denied => "denied",
            Self::TooLong => "too_long",
            Self::Collides => "collides",
            Self::TooMany => "too_many",
        }
    }

    /// The reason, and what to do.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Unnamed => "it has no name that can be read, or two",
            Self::Denied => "the settings deny it",
            Self::TooLong => "its name with the prefix has over 64 bytes; write a shorter `prefix`",
            Self::Collides => "another entry has this name; write another `prefix`",
            Self::TooMany => "the lists are longer than they may be; deny what is not needed",
        }
    }
}

impl Members {
    /// The backends with these settings, by name, or everything that is wrong with them, each with the
    /// name of the backend.
    pub fn new<'a>(
        written: impl IntoIterator<Item = (&'a str, &'a MemberSettings)>,
    ) -> Result<Self, Vec<(String, String)>> {
        let written: BTreeMap<_, _> = written.into_iter().collect();
        let is_only = written.len() == 1;
        let mut wrong = Vec::new();
        let mut add = |name: &str, text: String| wrong.push((name.to_owned(), text));
        if written.len() > MEMBERS_MAX {
            let name = written.keys().nth(MEMBERS_MAX).copied().unwrap_or_default();
            add(name, format!("is one too many: a tenant has at most {MEMBERS_MAX} backends"));
        }
        let mut owners = BTreeMap::new();
        let mut members = Vec::new();
        for (name, settings) in &written {
            let prefix = settings.prefix_of(name, is_only);
            if let Some(text) = wrong_prefix(prefix) {
                let of = if settings.prefix.is_some() { "`prefix`" } else { "name, its prefix," };
                add(name, format!("has the {of} {prefix:?}, which {text}"));
            } else if let Some(other) = owners.insert(prefix, *name) {
                let what = match prefix {
                    "" => "an empty `prefix`".to_owned(),
                    prefix => format!("the prefix {prefix:?}"),
                };
                add(
                    name,
                    format!(
                        "has {what}, which the backend {other:?} has too, so that a call could be for \
                         either; write another `prefix` for one of them"
                    ),
                );
            }
            match settings.rules() {
                Ok(rules) => {
                    let prefix = match prefix {
                        "" => String::new(),
                        prefix => format!("{prefix}{SEPARATOR}"),
                    };
                    members.push(Member { name: Arc::from(*name), prefix: prefix.into(), rules });
                }
                Err(all) => all.into_iter().for_each(|text| add(name, text)),
            }
        }
        if wrong.is_empty() { Ok(Self(members)) } else { Err(wrong) }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, at: usize) -> &Member {
        &self.0[at]
    }

    /// The names of the backends.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.iter().map(|member| &member.name)
    }

    /// The backend to which a tool or prompt with this name belongs, and the server's own name. It
    /// depends on the settings alone, so each node finds the same one, also before it knows any list.
    pub(crate) fn route<'a>(&self, kind: Kind, exposed: &'a str) -> Option<(usize, &'a str)> {
        let at = self.owner(exposed)?;
        let own = exposed.strip_prefix(&*self.0[at].prefix)?;
        let fits = exposed.len() <= NAME_BYTES_MAX && !own.is_empty();
        (fits && self.0[at].allows(kind, own)).then_some((at, own))
    }

    /// The backend whose prefix a name has; else the one without a prefix.
    fn owner(&self, exposed: &str) -> Option<usize> {
        let has =
            |member: &Member| !member.prefix.is_empty() && exposed.starts_with(&*member.prefix);
        let with_prefix = self.0.iter().position(has);
        with_prefix.or_else(|| self.0.iter().position(|member| member.prefix.is_empty()))
    }

    /// Whether the only backend may offer an entry with this name of the server's own.
    pub fn offers(&self, listed: Listed, own: &str) -> bool {
        self.exposed(0, listed, own).is_ok()
    }

    /// The name under which an entry of this backend is listed.
    pub(crate) fn exposed(&self, at: usize, listed: Listed, own: &str) -> Result<String, LeftOut> {
        let member = &self.0[at];
        let kind = match listed {
            Listed::Tool => Kind::Tool,
            Listed::Prompt => Kind::Prompt,
            Listed::Resource if member.allows(Kind::Resource, own) => return Ok(own.to_owned()),
            Listed::Template if member.rules.may_allow_template(own) => return Ok(own.to_owned()),
            Listed::Resource | Listed::Template => return Err(LeftOut::Denied),
        };
        if !member.allows(kind, own) {
            return Err(LeftOut::Denied);
        }
        if own.is_empty() {
            return Err(LeftOut::Unnamed);
        }
        let exposed = format!("{}{own}", member.prefix);
        if exposed.len() > NAME_BYTES_MAX {
            return Err(LeftOut::TooLong);
        }
        // A name of the backend without a prefix may look like one of another backend.
        if self.owner(&exposed) != Some(at) {
            return Err(LeftOut::Collides);
        }
        Ok(exposed)
    }
}

impl Member {
    /// Whether the backend may offer this.
    pub(crate) fn allows(&self, kind: Kind, own: &str) -> bool {
        match kind {
            // Servers look URIs up by normal forms: each of them is judged.
            Kind::Resource if self.rules.has(kind) => uri_forms(own)
                .is_ok_and(|forms| forms.iter().all(|form| self.rules.allow(kind, form))),
            kind => self.rules.allow(kind, own),
        }
    }
}

impl Rules {
    fn has(&self, kind: Kind) -> bool {
        !self.allow[kind as usize].is_empty() || !self.deny[kind as usize].is_empty()
    }

    fn allow(&self, kind: Kind, name: &str) -> bool {
        let fits = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.fits(name));
        let (allow, deny) = (&self.allow[kind as usize], &self.deny[kind as usize]);
        (allow.is_empty() || fits(allow)) && !fits(deny)
    }

    /// Whether a resource of this template may be offered.
    fn may_allow_template(&self, template: &str) -> bool {
        let begin = template.split('{').next().unwrap_or_default();
        let at = Kind::Resource as usize;
        let (allow, deny) = (&self.allow[at], &self.deny[at]);
        (allow.is_empty() || allow.iter().any(|pattern| pattern.may_fit(begin)))
            && !deny.iter().any(|pattern| pattern.fits_all(begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixed(prefix: &str) -> MemberSettings {
        MemberSettings { prefix: Some(prefix.to_owned()), ..MemberSettings::default() }
    }

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_name_leads_to_the_backend_whose_prefix_it_has() {
        let (plain, none, short) = (MemberSettings::default(), prefixed(""), prefixed("s"));
        let members = Members::new([("git", &plain), ("base", &none), ("slack", &short)]).unwrap();
        let route = |name: &'static str| {
            let (at, own) = members.route(Kind::Tool, name)?;
            Some((members.get(at).name.to_string(), own))
        };
        assert_eq!(route("git__status"), Some(("git".to_owned(), "status")));
        assert_eq!(route("s__post__now"), Some(("slack".to_owned(), "post__now")));
        assert_eq!(route("status"), Some(("base".to_owned(), "status")));
        assert_eq!(route("other__status"), Some(("base".to_owned(), "other__status")));
        assert_eq!(route("git__"), None);
        let base = members.names().position(|name| &**name == "base").unwrap();
        let listed = |name: &str| members.exposed(base, Listed::Tool, name);
        assert_eq!(listed("git__status"), Err(LeftOut::Collides));
        assert_eq!(listed(&"x".repeat(64)).map(|name| name.len()), Ok(64));
        assert_eq!(listed(&"x".repeat(65)), Err(LeftOut::TooLong));
    }

    #[test]
    fn what_is_denied_is_neither_listed_nor_called() {
        let rules = MemberSettings {
            allow_tools: texts(&["get_*"]),
            deny_tools: texts(&["get_secret"]),
            deny_resources: texts(&["x:/private/*"]),
            ..MemberSettings::default()
        };
        let members = Members::new([("a", &rules)]).unwrap();
        assert!(members.route(Kind::Tool, "get_it").is_some());
        for name in ["get_secret", "set_it"] {
            assert!(members.route(Kind::Tool, name).is_none());
            assert_eq!(members.exposed(0, Listed::Tool, name), Err(LeftOut::Denied));
        }
        let allows = |uri: &str| members.get(0).allows(Kind::Resource, uri);
        assert!(
            allows("x:/public/a") && !allows("x:/private/a") && !allows("x:/public/../private/a")
        );
        assert!(members.exposed(0, Listed::Template, "x:/private/{a}").is_err());
        assert!(members.exposed(0, Listed::Template, "x:/{a}").is_ok());
    }

    #[test]
    fn prefixes_that_cannot_be_told_apart_are_refused() {
        let wrong = |one: &MemberSettings, other: &MemberSettings| {
            let all = Members::new([("a", one), ("b", other)]).err().unwrap_or_default();
            all.into_iter()
                .map(|(name, text)| format!("{name} {text}"))
                .collect::<Vec<_>>()
                .join("\n")
        };
        let plain = MemberSettings::default();
        assert_eq!(wrong(&plain, &plain), "");
        assert!(wrong(&prefixed(""), &prefixed("")).contains("b has an empty `prefix`"));
        assert!(wrong(&plain, &prefixed("a")).contains("the backend \"a\" has too"));
        for bad in ["a__b", "_a", "a_", "a.b", "ä", "x".repeat(25).as_str()] {
            assert!(wrong(&plain, &prefixed(bad)).contains("write a"), "{bad}");
        }
        let named = Members::new([("x.y", &plain), ("b", &plain)]).err().unwrap_or_default();
        assert!(named[0].1.contains("its prefix"), "{named:?}");
    }
}

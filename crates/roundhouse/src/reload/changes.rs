//! Which tenants differ between two settings, and what the log says about them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use catalog::Pin;

use super::watched::files_of_backend;
use crate::settings::{BackendSettings, Settings, TenantSettings};

/// Most names that a log line has.
const NAMES_SHOWN_MAX: usize = 20;

/// The tenants that differ.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Changes {
    pub(super) added: BTreeSet<String>,
    pub(super) changed: BTreeSet<String>,
    pub(super) removed: BTreeSet<String>,
    /// Those of the changed ones whose servers differ.
    replaced: BTreeMap<String, Replaced>,
}

/// Which backends of a tenant differ.
#[derive(Debug, PartialEq)]
pub(super) enum Replaced {
    /// All, or how they are offered.
    All,
    /// Some of a catalog, by name. They are offered as before.
    These(BTreeSet<String>),
}

impl Changes {
    /// The tenants of which the settings differ, or a file that they name.
    pub(super) fn between(
        old: &Settings,
        new: &Settings,
        is_rotated: impl Fn(&Path) -> bool,
    ) -> Self {
        let mut changes = Self::default();
        for (name, written) in &new.tenants {
            let Some(former) = old.tenants.get(name) else {
                changes.added.insert(name.clone());
                continue;
            };
            let has_rotated = |backend: &BackendSettings| {
                files_of_backend(name, backend, new).iter().any(|file| is_rotated(file))
            };
            let replaced = Replaced::between(former, written, has_rotated);
            if replaced.is_some() || former != written {
                changes.changed.insert(name.clone());
            }
            changes.replaced.extend(replaced.map(|replaced| (name.clone(), replaced)));
        }
        let gone = old.tenants.keys().filter(|name| !new.tenants.contains_key(*name));
        changes.removed.extend(gone.cloned());
        changes
    }

    /// Whether all servers of the tenant are others than before.
    pub(super) fn has_new_backend(&self, tenant: &str) -> bool {
        self.added.contains(tenant) || self.replaced.get(tenant) == Some(&Replaced::All)
    }

    /// The backends of a tenant that differ, if it has others that do not.
    pub(super) fn backends_replaced(&self, tenant: &str) -> Option<&BTreeSet<String>> {
        match self.replaced.get(tenant) {
            Some(Replaced::These(names)) => Some(names),
            Some(Replaced::All) | None => None,
        }
    }

    pub(super) fn log(&self) {
        if *self == Self::default() {
            return tracing::info!("the settings have no changed tenants");
        }
        let names = |names: &BTreeSet<String>| shown(names.iter().map(String::as_str));
        tracing::info!(
            added = names(&self.added),
            changed = names(&self.changed),
            removed = names(&self.removed),
            "applied the tenants of the settings"
        );
    }
}

impl Replaced {
    /// The backends that differ, if any does. What is approved of them can be changed while they run, if they are a
    /// catalog.
    fn between(
        former: &TenantSettings,
        new: &TenantSettings,
        has_rotated: impl Fn(&BackendSettings) -> bool,
    ) -> Option<Self> {
        let differs = |(name, backend): &(&String, &BackendSettings)| {
            let is_same = former.backends.get(*name).is_some_and(|other| is_same(other, backend));
            // Users sign in there before they link an account.
            let has_other_issuer =
                backend.links_accounts() && former.tenant.oauth.issuer != new.tenant.oauth.issuer;
            !is_same || has_other_issuer || has_rotated(backend)
        };
        let these = new.backends.iter().filter(differs).map(|(name, _)| name.clone());
        let these: BTreeSet<_> = these.collect();
        let may_stay = former.backends.keys().eq(new.backends.keys())
            && is_catalog(former) == is_catalog(new)
            && former.start_secs_max() == new.start_secs_max()
            && these.iter().all(|name| is_offered_as(&former.backends[name], &new.backends[name]));
        match (may_stay, these.len()) {
            (true, 0) => None,
            (true, count) if count < new.backends.len() => Some(Self::These(these)),
            _ => Some(Self::All),
        }
    }
}

/// The settings of a backend without those of its pins.
fn unpinned(backend: &BackendSettings) -> BackendSettings {
    let mut backend = backend.clone();
    backend.member_mut().pin = Pin::Off;
    backend
}

fn is_same(former: &BackendSettings, new: &BackendSettings) -> bool {
    former == new || unpinned(former) == unpinned(new)
}

/// Whether sessions of the former backend can get the new one in its place: with the same names, the same rules,
/// and tokens of users for both or neither.
fn is_offered_as(former: &BackendSettings, new: &BackendSettings) -> bool {
    unpinned(former).member() == unpinned(new).member()
        && former.exchanges_tokens() == new.exchanges_tokens()
}

/// Whether the servers of a tenant are a catalog: the only server is one if it has pins or rules.
fn is_catalog(tenant: &TenantSettings) -> bool {
    let mut all = tenant.backends.values();
    all.next().is_some_and(|first| !first.member().is_plain()) || all.next().is_some()
}

/// Warns of settings that differ and are not applied.
pub(super) fn warn_of_other_changes(running: &Settings, new: &Settings) {
    let keys = running.keys_changed_in(new);
    if !keys.is_empty() {
        tracing::warn!(
            "settings that take effect only after a restart of the node were changed: {}",
            shown(keys.iter().map(String::as_str))
        );
    }
}

fn shown<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(NAMES_SHOWN_MAX);
    let mut text = names.take(NAMES_SHOWN_MAX).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text += &format!(" and {more} more");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_are_added_changed_and_removed() {
        let tenant = |rerun| {
            let care = actors::Care { idle_stop_secs: rerun, ..actors::Care::default() };
            TenantSettings { care, ..TenantSettings::default() }
        };
        let old = [("a", None), ("b", None), ("c", Some(1))];
        let new = [("b", None), ("c", Some(2)), ("d", None)];
        let [old, new] = [old, new].map(|all| {
            let tenants = all.into_iter().map(|(name, rerun)| (name.to_owned(), tenant(rerun)));
            Settings { tenants: tenants.collect(), ..Settings::default() }
        });
        let expected = Changes {
            added: ["d".to_owned()].into(),
            changed: ["c".to_owned()].into(),
            removed: ["a".to_owned()].into(),
            replaced: BTreeMap::new(),
        };
        assert_eq!(Changes::between(&old, &new, |_| false), expected);
        assert!(expected.has_new_backend("d") && !expected.has_new_backend("c"));
    }

    /// The settings of a tenant with these backends, each a table of TOML.
    fn tenant(backends: &[(&str, &str)]) -> Settings {
        let read =
            |(name, text): &(&str, &str)| ((*name).to_owned(), toml::from_str(text).unwrap());
        let tenant =
            TenantSettings { backends: backends.iter().map(read).collect(), ..Default::default() };
        Settings { tenants: [("acme".to_owned(), tenant)].into(), ..Settings::default() }
    }

    #[test]
    fn a_backend_that_is_offered_as_before_is_replaced_alone() {
        const FORMER: &str = "kind = 'http'\nurl = 'https://b/'\n";
        let (a, b) = ("kind = 'stdio'\ncommand = 'a'\nenv_file = '/secrets'\n", FORMER);
        let replaced = |b: &str, rotated: &str| {
            let (old, new) = (tenant(&[("a", a), ("b", FORMER)]), tenant(&[("a", a), ("b", b)]));
            let changes = Changes::between(&old, &new, |file| file == Path::new(rotated));
            changes.replaced.into_iter().next().map(|(_, replaced)| replaced)
        };
        let only_b = || Some(Replaced::These(["b".to_owned()].into()));
        assert_eq!(replaced(b, ""), None);
        assert_eq!(replaced("kind = 'http'\nurl = 'https://c/'\n", ""), only_b());
        assert_eq!(replaced("kind = 'stdio'\ncommand = 'b'\n", ""), only_b());
        assert_eq!(replaced(&format!("{b}pin = 'warn'\n"), ""), None);
        let only_a = Some(Replaced::These(["a".to_owned()].into()));
        assert_eq!(replaced(b, "/secrets"), only_a);
        for other in
            ["prefix = 'c'\n", "deny_tools = ['c']\n", "credential.grant = 'token_exchange'\n"]
        {
            assert_eq!(replaced(&format!("{b}{other}"), ""), Some(Replaced::All), "{other}");
        }
    }

    #[test]
    fn servers_at_which_users_link_accounts_are_replaced_with_the_issuer_of_the_tenant() {
        let linking =
            "kind = 'http'\nurl = 'https://b/'\ncredential.grant = 'authorization_code'\n";
        let other = "kind = 'http'\nurl = 'https://a/'\n";
        let replaced = |b: &str| {
            let all = ["https://one/", "https://two/"].map(|issuer| {
                let mut settings = tenant(&[("a", other), ("b", b)]);
                for tenant in settings.tenants.values_mut() {
                    tenant.tenant.oauth.issuer = issuer.to_owned();
                }
                settings
            });
            Changes::between(&all[0], &all[1], |_| false).replaced.into_values().next()
        };
        assert_eq!(replaced(linking), Some(Replaced::These(["b".to_owned()].into())));
        assert_eq!(replaced(other), None);
    }

    #[test]
    fn a_long_list_is_cut() {
        let names: Vec<String> = (0..22).map(|number| number.to_string()).collect();
        assert!(shown(names.iter().map(String::as_str)).ends_with("19 and 2 more"));
    }
}

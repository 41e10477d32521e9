//! Which tenants differ between two settings, and what the log says about them.

use std::collections::BTreeSet;
use std::path::Path;

use catalog::Pin;

use super::watched::files_of;
use crate::settings::{Settings, TenantSettings};

/// Most names that a log line has.
const NAMES_SHOWN_MAX: usize = 20;

/// The tenants that differ.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Changes {
    pub(super) added: BTreeSet<String>,
    pub(super) changed: BTreeSet<String>,
    pub(super) removed: BTreeSet<String>,
    /// Those of the changed ones whose servers differ.
    replaced: BTreeSet<String>,
}

impl Changes {
    /// The tenants of which the settings differ, or a file that they name.
    pub(super) fn between(
        old: &Settings,
        new: &Settings,
        is_rotated: impl Fn(&Path) -> bool,
    ) -> Self {
        let mut changes = Self::default();
        let has_rotated =
            |name: &str, tenant| files_of(name, tenant, new).iter().any(|file| is_rotated(file));
        for (name, written) in &new.tenants {
            match old.tenants.get(name) {
                None => drop(changes.added.insert(name.clone())),
                Some(former) => {
                    let is_replaced =
                        has_other_servers(former, written) || has_rotated(name, written);
                    if is_replaced {
                        changes.replaced.insert(name.clone());
                    }
                    if is_replaced || former != written {
                        changes.changed.insert(name.clone());
                    }
                }
            }
        }
        let gone = old.tenants.keys().filter(|name| !new.tenants.contains_key(*name));
        changes.removed.extend(gone.cloned());
        changes
    }

    /// Whether the tenant has another backend than before.
    pub(super) fn has_new_backend(&self, tenant: &str) -> bool {
        self.added.contains(tenant) || self.replaced.contains(tenant)
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

/// Whether the servers differ, or how they are offered. What is approved of them can be changed while they run,
/// if they are a catalog.
fn has_other_servers(former: &TenantSettings, new: &TenantSettings) -> bool {
    if former.backends == new.backends {
        return false;
    }
    let unpinned = |tenant: &TenantSettings| {
        let mut backends = tenant.backends.clone();
        let is_only = backends.len() == 1;
        for backend in backends.values_mut() {
            let pin = &mut backend.member_mut().pin;
            // The only server of a tenant is a catalog if it has pins.
            let is_catalog = is_only && *pin != Pin::Off;
            *pin = if is_catalog { Pin::Warn } else { Pin::Off };
        }
        backends
    };
    unpinned(former) != unpinned(new)
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
            replaced: BTreeSet::new(),
        };
        assert_eq!(Changes::between(&old, &new, |_| false), expected);
        assert!(expected.has_new_backend("d") && !expected.has_new_backend("c"));
    }

    #[test]
    fn a_long_list_is_cut() {
        let names: Vec<String> = (0..22).map(|number| number.to_string()).collect();
        assert!(shown(names.iter().map(String::as_str)).ends_with("19 and 2 more"));
    }
}

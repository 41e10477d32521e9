//! What each tenant may take of the node, as the settings say.

use std::sync::Arc;

use actors::SessionBytes;
use backends::stdio::StdioShares;
use budget::{Budget, ShareLimits};

use crate::settings::{Settings, TenantSettings};

/// The budgets of a node. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Budgets {
    /// The bytes that sessions keep, and of lines that servers have not ended.
    pub(crate) session_bytes: SessionBytes,
    /// The server processes.
    pub(crate) children: Budget,
}

impl Budgets {
    /// The budgets under these settings.
    pub(crate) fn of(settings: &Settings) -> Self {
        let count = settings.tenants.len();
        let named = || settings.tenants.iter().map(|(name, t)| (name.as_str(), &t.tenant.limits));
        let bytes_max = settings.node.session_bytes_max;
        let bytes = named().map(|(name, limits)| {
            let default = one_of(count, bytes_max, limits.session_bytes_max);
            let min = limits.session_bytes_min.unwrap_or(default.min);
            (name.into(), ShareLimits { min, ..default })
        });
        let children_max = settings.node.children.children_max;
        let children = named()
            .map(|(name, limits)| (name.into(), one_of(count, children_max, limits.children_max)));
        Self {
            session_bytes: SessionBytes::new(bytes_max, bytes),
            children: Budget::new(children_max, children, || {}),
        }
    }

    /// Names the tenants that were added to the settings, before anything asks for their shares. See
    /// [`Budget::add`].
    pub(crate) fn name_added(&self, settings: &Settings) -> Naming {
        let named = settings.tenants.iter().map(|(name, written)| (Arc::from(&**name), written));
        let added = named.filter(|(name, written)| self.add(name, written, settings));
        Naming { added: added.map(|(name, _)| name).collect(), budgets: self.clone() }
    }

    /// Returns whether the tenant is new.
    fn add(&self, name: &Arc<str>, written: &TenantSettings, settings: &Settings) -> bool {
        let (count, limits) = (settings.tenants.len(), &written.tenant.limits);
        let bytes = one_of(count, settings.node.session_bytes_max, limits.session_bytes_max);
        let children_max = settings.node.children.children_max;
        let children = one_of(count, children_max, limits.children_max);
        let is_new = self.session_bytes.add(name, bytes.max);
        self.children.add(name, children.max) || is_new
    }

    /// Forgets a tenant that was removed from the settings. See [`Budget::remove`].
    pub(crate) fn remove(&self, name: &str) {
        self.session_bytes.remove(name);
        self.children.remove(name);
    }

    /// The shares of a tenant for its stdio servers; `None` for one that was not named.
    pub(crate) fn stdio_shares(&self, tenant: &str) -> Option<StdioShares> {
        Some(StdioShares {
            children: self.children.share(tenant)?,
            line_bytes: self.session_bytes.share(tenant)?,
        })
    }
}

/// Tenants that were named for settings which are not applied yet. Forgets them when it is dropped,
/// unless they are kept.
#[must_use]
pub(crate) struct Naming {
    added: Vec<Arc<str>>,
    budgets: Budgets,
}

impl Naming {
    /// The settings were applied.
    pub(crate) fn keep(mut self) {
        self.added.clear();
    }
}

impl Drop for Naming {
    fn drop(&mut self) {
        self.added.iter().for_each(|name| self.budgets.remove(name));
    }
}

/// The bounds of one of so many tenants. Half of the total is divided into minima.
fn one_of(count: usize, total: usize, set: Option<usize>) -> ShareLimits {
    ShareLimits::of_one(total, count, usize::MAX, set)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(tenants: &[(&str, usize)]) -> Settings {
        let tenant = |(name, children_max): &(&str, usize)| {
            let mut written = TenantSettings::default();
            written.tenant.limits.children_max = Some(*children_max);
            ((*name).to_owned(), written)
        };
        Settings { tenants: tenants.iter().map(tenant).collect(), ..Settings::default() }
    }

    #[test]
    fn a_tenant_that_is_added_has_its_own_maximum_before_it_is_planned() {
        let budgets = Budgets::of(&settings(&[("first", 5)]));
        let children_max = |name| budgets.stdio_shares(name).map(|shares| shares.children.max());
        assert_eq!((children_max("first"), children_max("late")), (Some(5), None));
        let new = settings(&[("first", 7), ("late", 3)]);
        let naming = budgets.name_added(&new);
        assert_eq!((children_max("first"), children_max("late")), (Some(5), Some(3)));
        drop(naming);
        assert_eq!((children_max("first"), children_max("late")), (Some(5), None), "refused");
        budgets.name_added(&new).keep();
        assert_eq!(children_max("late"), Some(3));
    }
}

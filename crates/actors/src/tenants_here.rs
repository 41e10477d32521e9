//! What operators see of the tenants of this node: what their sessions use, and what they may use.

use std::collections::BTreeMap;
use std::sync::Arc;

use budget::Share;
use tenants::{Access, Tenant};

use crate::node::Node;

/// What the sessions of one tenant use on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantFigures {
    /// The name of the tenant.
    pub tenant: Arc<str>,
    /// The sessions on the node.
    pub sessions: Figure,
    /// The bytes that these sessions keep in memory.
    pub session_bytes: Figure,
    /// The bytes that they, and those that fell asleep at the node, keep in the store, as far as the node
    /// knows.
    pub stored_bytes: u64,
    /// The server processes of the tenant on the node.
    pub children: Figure,
    /// What the settings of the node have; `None` if they do not have the tenant.
    pub settings: Option<ShownSettings>,
}

/// What operators see of the settings of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownSettings {
    /// The kinds of credentials, or `open`.
    pub auth: Vec<String>,
    /// The number of keys; `None` if the tenant has no keys.
    pub keys: Option<u64>,
    /// The hosts.
    pub hosts: Vec<String>,
    /// Whether the tenant was removed.
    pub is_leaving: bool,
}

impl ShownSettings {
    /// Those of this tenant.
    pub fn of(tenant: &Tenant) -> Self {
        let (auth, keys) = match &tenant.access {
            Access::Open => (vec!["open"], None),
            Access::Authenticated(credentials) => {
                let keys = credentials.keys.as_ref().map(|_| "keys");
                let oauth = credentials.oauth.as_ref().map(|_| "oauth");
                let count = credentials.keys.as_ref().map(|keys| keys.count() as u64);
                (keys.into_iter().chain(oauth).collect(), count)
            }
        };
        let auth = auth.into_iter().map(str::to_owned).collect();
        Self { auth, keys, hosts: tenant.hosts.clone(), is_leaving: tenant.is_leaving }
    }
}

/// An amount that is used, and the most that may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figure {
    /// The amount.
    pub used: u64,
    /// The most; `None` without a bound, or for a tenant that the node's settings do not have.
    pub max: Option<u64>,
}

impl Figure {
    /// The figure of two nodes together.
    pub fn plus(self, other: Self) -> Self {
        let max = self.max.into_iter().chain(other.max).reduce(u64::saturating_add);
        Self { used: self.used.saturating_add(other.used), max }
    }

    fn of(share: &Share) -> Self {
        let max = Some(share.max()).filter(|max| *max < usize::MAX);
        Self { used: share.used() as u64, max: max.map(|max| max as u64) }
    }
}

/// The figures of the tenants of this node, in the order of their names. There are as many as the
/// settings have tenants, and those whose sessions came from other nodes.
pub(crate) fn list(node: &Node) -> Vec<TenantFigures> {
    let mut by_name = BTreeMap::<Arc<str>, TenantFigures>::new();
    let mut of = |tenant: &Arc<str>, add: &dyn Fn(&mut TenantFigures)| {
        let new = || TenantFigures { tenant: Arc::clone(tenant), ..TenantFigures::default() };
        add(by_name.entry(Arc::clone(tenant)).or_insert_with(new));
    };
    for (tenant, used) in node.registry.sessions_by_tenant() {
        of(&tenant, &|figures| figures.sessions.used = used as u64);
    }
    for (tenant, max) in node.registry.sessions_maxima() {
        of(&tenant, &|figures| figures.sessions.max = Some(max as u64));
    }
    let bytes = &node.context.session_bytes;
    for share in bytes.budget().shares() {
        of(share.tenant(), &|figures| figures.session_bytes = Figure::of(&share));
    }
    for share in bytes.in_store().shares() {
        of(share.tenant(), &|figures| figures.stored_bytes = share.used() as u64);
    }
    for share in node.context.children.iter().flat_map(|children| children.shares()) {
        of(share.tenant(), &|figures| figures.children = Figure::of(&share));
    }
    for tenant in node.tenants.get().into_iter().flat_map(tenants::Tenants::by_name) {
        of(&tenant.name, &|figures| figures.settings = Some(ShownSettings::of(&tenant)));
    }
    by_name.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_two_nodes_add_up_and_a_missing_bound_counts_nothing() {
        let figure = |used, max| Figure { used, max };
        assert_eq!(figure(1, Some(5)).plus(figure(2, Some(7))), figure(3, Some(12)));
        assert_eq!(figure(1, Some(5)).plus(figure(2, None)), figure(3, Some(5)));
        assert_eq!(figure(0, None).plus(figure(2, None)), figure(2, None));
        let full = figure(0, Some(u64::MAX));
        assert_eq!(full.plus(figure(0, Some(1))).max, Some(u64::MAX));
    }
}

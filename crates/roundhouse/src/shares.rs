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

    /// Names a tenant that was added to the settings. See [`Budget::add`].
    pub(crate) fn add(&self, name: &Arc<str>, written: &TenantSettings, settings: &Settings) {
        let (count, limits) = (settings.tenants.len(), &written.tenant.limits);
        let bytes = one_of(count, settings.node.session_bytes_max, limits.session_bytes_max);
        self.session_bytes.add(name, bytes.max);
        let children_max = settings.node.children.children_max;
        self.children.add(name, one_of(count, children_max, limits.children_max).max);
    }

    /// Forgets a tenant that was removed from the settings. See [`Budget::remove`].
    pub(crate) fn remove(&self, name: &str) {
        self.session_bytes.remove(name);
        self.children.remove(name);
    }

    /// The shares of a tenant for its stdio servers.
    pub(crate) fn stdio_shares(&self, tenant: &str) -> StdioShares {
        StdioShares {
            children: self.children.share(tenant),
            line_bytes: self.session_bytes.share(tenant),
        }
    }
}

/// The bounds of one of so many tenants. Half of the total is divided into minima.
fn one_of(count: usize, total: usize, set: Option<usize>) -> ShareLimits {
    ShareLimits::of_one(total, count, usize::MAX, set)
}

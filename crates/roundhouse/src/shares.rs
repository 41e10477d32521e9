//! What each tenant may take of the node, as the settings say.

use actors::SessionBytes;
use backends::stdio::StdioShares;
use budget::{Budget, ShareLimits};

use crate::settings::Settings;

/// The budgets of a node.
pub(crate) struct Budgets {
    /// The bytes that sessions keep, and of lines that servers have not ended.
    pub(crate) session_bytes: SessionBytes,
    children: Budget,
}

impl Budgets {
    /// The budgets under these settings.
    pub(crate) fn of(settings: &Settings) -> Self {
        let count = settings.tenants.len();
        let named = || settings.tenants.iter().map(|(name, t)| (name.as_str(), &t.tenant.limits));
        let bytes_max = settings.node.session_bytes_max;
        let bytes = named().map(|(name, limits)| {
            // Half of the total is divided into minima.
            let default =
                ShareLimits::of_one(bytes_max, count, usize::MAX, limits.session_bytes_max);
            let min = limits.session_bytes_min.unwrap_or(default.min);
            (name.into(), ShareLimits { min, ..default })
        });
        let children_max = settings.node.children.children_max;
        let children = named().map(|(name, limits)| {
            (name.into(), ShareLimits::of_one(children_max, count, usize::MAX, limits.children_max))
        });
        Self {
            session_bytes: SessionBytes::new(bytes_max, bytes),
            children: Budget::new(children_max, children, || {}),
        }
    }

    /// The shares of a tenant for its stdio servers.
    pub(crate) fn stdio_shares(&self, tenant: &str) -> StdioShares {
        StdioShares {
            children: self.children.share(tenant),
            line_bytes: self.session_bytes.share(tenant),
        }
    }
}

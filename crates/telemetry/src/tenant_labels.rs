//! Which tenants have time series of their own, so that their number is bounded.

use std::collections::HashSet;
use std::sync::Arc;

/// The label of all tenants without time series of their own. No tenant can have this name: it has
/// a space.
pub const OTHER_TENANTS: &str = "other tenants";

/// The tenants with time series of their own. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct TenantLabels(Arc<HashSet<Arc<str>>>);

impl TenantLabels {
    /// The first `max` of these names in alphabetical order: every node of a cluster with the same
    /// settings chooses the same ones, and the choice does not change with use.
    pub fn new(names: impl IntoIterator<Item = Arc<str>>, max: usize) -> Self {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort();
        names.truncate(max);
        Self(Arc::new(names.into_iter().collect()))
    }

    /// The value of the label `tenant` for this tenant.
    pub fn label<'a>(&self, tenant: &'a str) -> &'a str {
        if self.0.contains(tenant) { tenant } else { OTHER_TENANTS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_names_have_labels_of_their_own() {
        let labels = TenantLabels::new(["c", "a", "b"].map(Arc::from), 2);
        assert_eq!(
            ["a", "b", "c", "d"].map(|name| labels.label(name)),
            ["a", "b", OTHER_TENANTS, OTHER_TENANTS]
        );
        assert_eq!(TenantLabels::default().label("a"), OTHER_TENANTS);
    }
}

//! Which tenants have time series of their own, so that their number is bounded.

use std::collections::{BTreeMap, HashSet};
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

    /// Adds the amounts of tenants up by label. Each tenant with a label of its own has an amount.
    pub fn sums<'a>(
        &'a self,
        amounts: impl IntoIterator<Item = (&'a str, usize)>,
    ) -> BTreeMap<&'a str, usize> {
        let mut sums: BTreeMap<&str, usize> = self.0.iter().map(|name| (&**name, 0)).collect();
        for (tenant, amount) in amounts {
            *sums.entry(self.label(tenant)).or_default() += amount;
        }
        sums
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

    #[test]
    fn the_amounts_of_the_others_are_added_up() {
        let labels = TenantLabels::new(["a", "b", "c", "d"].map(Arc::from), 2);
        let sums = labels.sums([("a", 1), ("c", 2), ("d", 3)]);
        assert_eq!(sums.into_iter().collect::<Vec<_>>(), [("a", 1), ("b", 0), (OTHER_TENANTS, 5)]);
    }
}

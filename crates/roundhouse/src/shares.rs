//! What each tenant may take of the node, as the settings say.

use std::sync::Arc;

use actors::SessionBytes;
use backends::stdio::StdioShares;
use budget::{Budget, ShareLimits};

use crate::settings::{Problems, Settings};

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
        let bytes_max = settings.node.session_bytes_max;
        let children_max = settings.node.children.children_max;
        Self {
            session_bytes: SessionBytes::new(bytes_max, session_bytes(settings)),
            children: Budget::new(children_max, children(settings)),
        }
    }

    /// Names the tenants that were added to the settings, before anything asks for their shares. They
    /// get their bounds with [`Self::divide`].
    pub(crate) fn name_added(&self, settings: &Settings) -> Naming {
        let added = settings.tenants.keys().filter(|name| self.name(name));
        Naming { added: added.cloned().collect(), budgets: self.clone() }
    }

    /// Returns whether the tenant is new.
    fn name(&self, tenant: &str) -> bool {
        let is_new = self.session_bytes.name(tenant);
        self.children.name(self.children.unnamed_share(tenant)) || is_new
    }

    /// Divides the budgets anew among the tenants of these settings. See [`Budget::divide`].
    pub(crate) fn divide(&self, settings: &Settings) {
        self.session_bytes.divide(session_bytes(settings));
        self.children.divide(children(settings));
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
    added: Vec<String>,
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

/// Adds a problem if the minima that are written exceed what the node has, or the maxima of their
/// tenants.
pub(crate) fn check_minima(settings: &Settings, problems: &mut Problems) {
    let total = settings.node.session_bytes_max;
    for (tenant, written) in &settings.tenants {
        let limits = &written.tenant.limits;
        if let (Some(min), Some(max)) = (limits.session_bytes_min, limits.session_bytes_max)
            && min > max
        {
            problems.add(format!(
                "`tenants.{tenant}.limits.session_bytes_min` is {min}, more than its `session_bytes_max`, \
                 which is {max}; lower the minimum, or raise the maximum"
            ));
        }
    }
    let minima = || written_minima(settings);
    let sum = sum(minima());
    // The first one of the largest.
    let largest = minima().rev().max_by_key(|(_, min)| *min).filter(|_| sum > total);
    let Some((tenant, min)) = largest else { return };
    problems.add(format!(
        "`tenants.{tenant}.limits.session_bytes_min` is {min}, the largest of minima that are {sum} bytes \
         together, more than `node.session_bytes_max`, which is {total}; lower minima, or raise the \
         total and restart the node"
    ));
}

/// The minima that are written, by tenant.
fn written_minima(settings: &Settings) -> impl DoubleEndedIterator<Item = (&str, usize)> {
    let tenants = settings.tenants.iter();
    tenants.filter_map(|(name, t)| Some((name.as_str(), t.tenant.limits.session_bytes_min?)))
}

fn sum<'a>(minima: impl Iterator<Item = (&'a str, usize)>) -> usize {
    minima.fold(0, |sum, (_, min)| sum.saturating_add(min))
}

/// The parts of the tenants in the bytes of sessions. A tenant without a written minimum has an equal
/// part of half of the total, or of what the written minima leave if that is less.
fn session_bytes(settings: &Settings) -> Vec<(Arc<str>, ShareLimits)> {
    let (total, count) = (settings.node.session_bytes_max, settings.tenants.len());
    let others = count.saturating_sub(written_minima(settings).count()).max(1);
    let left = total.saturating_sub(sum(written_minima(settings))) / others;
    let limits = settings.tenants.iter().map(|(name, tenant)| {
        let limits = &tenant.tenant.limits;
        let equal = one_of(count, total, limits.session_bytes_max);
        let min = limits.session_bytes_min.unwrap_or(equal.min.min(left));
        // A minimum that is written raises a maximum that is not.
        (name.as_str().into(), ShareLimits { min, max: equal.max.max(min) })
    });
    limits.collect()
}

/// The parts of the tenants in the server processes.
fn children(settings: &Settings) -> Vec<(Arc<str>, ShareLimits)> {
    let (total, count) = (settings.node.children.children_max, settings.tenants.len());
    let limits = settings.tenants.iter().map(|(name, tenant)| {
        (name.as_str().into(), one_of(count, total, tenant.tenant.limits.children_max))
    });
    limits.collect()
}

/// The bounds of one of so many tenants. Half of the total is divided into minima.
fn one_of(count: usize, total: usize, set: Option<usize>) -> ShareLimits {
    ShareLimits::of_one(total, count, usize::MAX, set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TenantSettings;
    use tenants::Limits;

    /// Settings with a total of 1,000 bytes for sessions.
    fn settings(tenants: &[(&str, Limits)]) -> Settings {
        let mut settings = Settings::default();
        settings.node.session_bytes_max = 1_000;
        for (name, limits) in tenants {
            let mut written = TenantSettings::default();
            written.tenant.limits = limits.clone();
            settings.tenants.insert((*name).to_owned(), written);
        }
        settings
    }

    fn children(max: usize) -> Limits {
        Limits { children_max: Some(max), ..Limits::default() }
    }

    fn bytes(min: Option<usize>, max: Option<usize>) -> Limits {
        Limits { session_bytes_min: min, session_bytes_max: max, ..Limits::default() }
    }

    #[test]
    fn a_written_minimum_is_kept_and_the_others_get_at_most_what_it_leaves() {
        let of = |tenants: &[(&str, Limits)]| -> Vec<(usize, usize)> {
            let limits = session_bytes(&settings(tenants));
            limits.iter().map(|(_, limits)| (limits.min, limits.max)).collect()
        };
        let none = || bytes(None, None);
        assert_eq!(of(&[("a", none()), ("b", none())]), [(250, 500), (250, 500)]);
        let a = bytes(Some(300), None);
        assert_eq!(of(&[("a", a), ("b", none())]), [(300, 500), (250, 500)]);
        let (a, c) = (bytes(Some(900), None), bytes(None, Some(40)));
        assert_eq!(of(&[("a", a), ("b", none()), ("c", c)]), [(900, 900), (50, 500), (40, 40)]);
    }

    #[test]
    fn minima_above_the_total_or_their_maxima_are_problems() {
        let found = |tenants: &[(&str, Limits)]| {
            let mut problems = Problems::default();
            check_minima(&settings(tenants), &mut problems);
            problems.lines()
        };
        let min = |min| bytes(Some(min), None);
        assert!(found(&[("a", min(400)), ("b", min(600)), ("c", bytes(None, None))]).is_empty());
        let [problem] = &found(&[("a", min(400)), ("b", min(601))])[..] else { panic!("not one") };
        assert!(problem.starts_with("`tenants.b.limits.session_bytes_min` is 601,"), "{problem}");
        assert!(problem.contains("1001 bytes") && problem.contains("is 1000;"), "{problem}");
        assert_eq!(found(&[("a", min(1_001))]).len(), 1, "one tenant alone");
        let [problem] = &found(&[("a", bytes(Some(5), Some(4)))])[..] else { panic!("not one") };
        assert!(problem.contains("is 5,") && problem.contains("is 4;"), "{problem}");
    }

    #[test]
    fn an_added_tenant_has_shares_before_it_is_planned_and_its_bounds_when_it_is_applied() {
        let budgets = Budgets::of(&settings(&[("first", children(5))]));
        let children_max = |name| budgets.stdio_shares(name).map(|shares| shares.children.max());
        assert_eq!((children_max("first"), children_max("late")), (Some(5), None));
        let new = settings(&[("first", children(7)), ("late", children(3))]);
        let naming = budgets.name_added(&new);
        assert!(children_max("first") == Some(5) && children_max("late").is_some());
        drop(naming);
        assert_eq!((children_max("first"), children_max("late")), (Some(5), None), "refused");
        budgets.name_added(&new).keep();
        let planned = budgets.stdio_shares("late").unwrap();
        budgets.divide(&new);
        assert_eq!((children_max("first"), children_max("late")), (Some(7), Some(3)));
        assert_eq!((planned.children.max(), planned.line_bytes.min()), (3, 250));
    }
}

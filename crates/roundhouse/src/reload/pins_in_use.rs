//! The pins that sessions follow: those of the tenants' catalogs, and those of former catalogs that sessions
//! still have.

use std::collections::BTreeMap;

use catalog::{TenantPins, WeakPins};

/// The pins that sessions of the node follow, by tenant.
pub(super) struct PinsInUse {
    /// Those of the catalogs that new sessions get.
    current: BTreeMap<String, TenantPins>,
    /// Those of catalogs that were replaced, also of tenants that were removed. They are forgotten at the
    /// first reload after the end of their last session, so they are no more than the sessions are.
    former: BTreeMap<String, Vec<WeakPins>>,
}

impl PinsInUse {
    pub(super) fn new(current: BTreeMap<String, TenantPins>) -> Self {
        Self { current, former: BTreeMap::new() }
    }

    /// Has all catalogs of these tenants compare definitions with the planned pins, also in sessions that
    /// are open. `has_new_catalog`: whether the tenant has another catalog than before, which has them.
    pub(super) fn replace(
        &mut self,
        planned: &BTreeMap<String, TenantPins>,
        has_new_catalog: impl Fn(&str) -> bool,
    ) {
        let mut replaced = std::mem::take(&mut self.current);
        for (tenant, planned) in planned {
            let kept = replaced.remove(tenant).filter(|kept| {
                let is_kept = !has_new_catalog(tenant);
                if !is_kept {
                    self.former.entry(tenant.clone()).or_default().push(kept.downgrade());
                }
                is_kept
            });
            let former = self.former.get(tenant).into_iter().flatten();
            let former = former.filter_map(WeakPins::upgrade);
            let all = kept.iter().cloned().chain(former);
            // All of them, also behind one that differs.
            if all.filter(|pins| pins.replace_by(planned)).count() > 0 {
                tracing::info!(tenant, "applied other pins of the tenant's servers");
            }
            self.current.insert(tenant.clone(), kept.unwrap_or_else(|| planned.clone()));
        }
        for (tenant, removed) in replaced {
            self.former.entry(tenant).or_default().push(removed.downgrade());
        }
        // The catalogs that no session has are dropped by now.
        self.former.retain(|_, all| {
            all.retain(|pins| pins.upgrade().is_some());
            !all.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use catalog::{Fingerprint, Pin, Pinned, ServerPins};

    use super::*;

    /// The pins of servers whose only tool is defined so.
    fn pins(servers: &[(&str, &str)]) -> TenantPins {
        TenantPins::new(servers.iter().map(|(name, definition)| {
            let tools = [("send".to_owned(), Fingerprint::of_instructions(definition))];
            let pins = Arc::new(ServerPins { tools: tools.into(), ..ServerPins::default() });
            (Arc::from(*name), Pinned { pin: Pin::Refuse, pins })
        }))
    }

    fn of_acme(pins: &TenantPins) -> BTreeMap<String, TenantPins> {
        BTreeMap::from([("acme".to_owned(), pins.clone())])
    }

    /// Whether a catalog with these pins has those: then nothing is replaced.
    fn are(pins: &TenantPins, expected: &[(&str, &str)]) -> bool {
        !pins.replace_by(&self::pins(expected))
    }

    #[test]
    fn former_catalogs_get_new_pins_of_the_servers_that_are_still_there() {
        let first = pins(&[("a", "1"), ("gone", "1")]);
        let mut in_use = PinsInUse::new(of_acme(&first));
        let second = pins(&[("a", "2"), ("b", "2")]);
        in_use.replace(&of_acme(&second), |_| true);
        assert!(are(&first, &[("a", "2"), ("gone", "1")]), "at the reload that replaces it");
        in_use.replace(&of_acme(&pins(&[("a", "3"), ("b", "3")])), |_| false);
        assert!(are(&first, &[("a", "3"), ("gone", "1")]), "at a later one");
        assert!(are(&second, &[("a", "3"), ("b", "3")]));
    }

    #[test]
    fn sessions_of_a_removed_tenant_get_the_pins_of_the_tenant_that_comes_back() {
        let first = pins(&[("a", "1")]);
        let mut in_use = PinsInUse::new(of_acme(&first));
        in_use.replace(&BTreeMap::new(), |_| false);
        assert!(are(&first, &[("a", "1")]));
        in_use.replace(&of_acme(&pins(&[("a", "2")])), |_| true);
        assert!(are(&first, &[("a", "2")]));
    }

    #[test]
    fn a_former_catalog_without_sessions_is_forgotten() {
        let mut in_use = PinsInUse::new(of_acme(&pins(&[("a", "0")])));
        let session = pins(&[("a", "1")]);
        for planned in [session.clone(), pins(&[("a", "2")]), pins(&[("a", "3")])] {
            in_use.replace(&of_acme(&planned), |_| true);
        }
        assert_eq!(in_use.former["acme"].len(), 1, "that of the session");
        drop(session);
        in_use.replace(&of_acme(&pins(&[("a", "4")])), |_| true);
        assert!(in_use.former.is_empty());
    }
}

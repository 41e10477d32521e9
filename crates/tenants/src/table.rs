//! The tenants of the node, which can change while it runs.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;

use crate::{Tenant, name_of_host};

#[derive(Debug, Default)]
struct Table {
    by_name: HashMap<Arc<str>, Arc<Tenant>>,
    by_host: HashMap<Box<str>, Arc<Tenant>>,
}

impl Table {
    fn new(tenants: impl Iterator<Item = Arc<Tenant>>) -> Self {
        let mut table = Self::default();
        for tenant in tenants {
            for host in &tenant.hosts {
                let host = Box::from(name_of_host(host));
                // Another tenant may have got the host of one that is leaving.
                if tenant.is_leaving {
                    table.by_host.entry(host).or_insert_with(|| Arc::clone(&tenant));
                } else {
                    table.by_host.insert(host, Arc::clone(&tenant));
                }
            }
            table.by_name.insert(Arc::clone(&tenant.name), tenant);
        }
        table
    }
}

/// The tenants of the node, shared by its threads. The settings bound their number. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tenants(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Grows with each replacement of the table, after it.
    version: AtomicU64,
    /// Has the version, for those who wait for the next one.
    changed: watch::Sender<u64>,
    table: RwLock<Arc<Table>>,
}

impl Tenants {
    /// Creates the table of these tenants.
    pub fn new(tenants: impl IntoIterator<Item = Tenant>) -> Self {
        let new = Self::default();
        new.replace(tenants);
        new
    }

    /// Replaces all tenants. A request in progress keeps the tenant that it began with.
    pub fn replace(&self, tenants: impl IntoIterator<Item = Tenant>) {
        let table = Table::new(tenants.into_iter().map(Arc::new));
        // A table is replaced as a whole, so it is right in any case.
        *self.0.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        let version = self.0.version.fetch_add(1, Ordering::Release) + 1;
        self.0.changed.send_replace(version);
    }

    /// Changes whenever all tenants were replaced.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// Returns the tenant with this name.
    pub fn find(&self, name: &str) -> Option<Arc<Tenant>> {
        self.table().by_name.get(name).cloned()
    }

    /// All tenants, ordered by name.
    pub fn by_name(&self) -> Vec<Arc<Tenant>> {
        let mut all: Vec<_> = self.table().by_name.values().cloned().collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.0.table.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A copy of the tenants for one thread, brought up to date when it is read. Its threads then share
/// no memory that each request changes.
#[derive(Debug)]
pub struct TenantsOfThread {
    shared: Tenants,
    version: Cell<u64>,
    copy: RefCell<Table>,
}

impl Clone for TenantsOfThread {
    /// A copy for another thread, which has no memory in common with this one.
    fn clone(&self) -> Self {
        Self::new(&self.shared)
    }
}

impl TenantsOfThread {
    /// A copy of these tenants.
    pub fn new(shared: &Tenants) -> Self {
        let new = Self { shared: shared.clone(), version: Cell::new(0), copy: RefCell::default() };
        new.refresh();
        new
    }

    /// Returns the tenant with this name.
    pub fn find(&self, name: &str) -> Option<Arc<Tenant>> {
        self.refresh();
        self.copy.borrow().by_name.get(name).cloned()
    }

    /// Returns the tenant whose endpoint is served at this host, which is compared without case.
    pub fn of_host(&self, host: &str) -> Option<Arc<Tenant>> {
        self.refresh();
        let copy = self.copy.borrow();
        if let Some(tenant) = copy.by_host.get(host) {
            return Some(Arc::clone(tenant));
        }
        let has_upper = !copy.by_host.is_empty() && host.bytes().any(|b| b.is_ascii_uppercase());
        has_upper.then(|| copy.by_host.get(&*host.to_ascii_lowercase()).cloned()).flatten()
    }

    fn refresh(&self) {
        // Read before the table: a copy is then never older than its version.
        let version = self.shared.0.version.load(Ordering::Acquire);
        if self.version.replace(version) == version {
            return;
        }
        let copy = |tenant: &Arc<Tenant>| {
            let name: Arc<str> = Arc::from(&*tenant.name);
            let permissions = tenant.permissions.as_deref().map(|p| Arc::new(p.clone()));
            let cluster_limits = tenant.cluster_limits.as_deref().map(|l| Arc::new(l.clone()));
            Arc::new(Tenant { name, permissions, cluster_limits, ..Tenant::clone(tenant) })
        };
        *self.copy.borrow_mut() = Table::new(self.shared.table().by_name.values().map(copy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name, &Settings::open()).unwrap()
    }

    #[test]
    fn a_thread_sees_the_tenants_that_replaced_the_former_ones() {
        let tenants = Tenants::new([tenant("a"), tenant("b")]);
        let of_thread = TenantsOfThread::new(&tenants);
        let kept = of_thread.find("a").unwrap();
        tenants.replace([tenant("b"), tenant("c")]);
        assert!(of_thread.find("a").is_none() && of_thread.find("c").is_some());
        assert_eq!(&*kept.name, "a");
        let names: Vec<_> = tenants.by_name().iter().map(|t| t.name.to_string()).collect();
        assert_eq!(names, ["b", "c"]);
    }

    #[test]
    fn a_tenant_is_found_by_its_hosts_without_case() {
        let hosts = vec!["a.example".into(), "b.example:8443".into()];
        let settings = Settings { hosts, ..Settings::open() };
        let tenants = Tenants::new([Tenant::new("a", &settings).unwrap(), tenant("b")]);
        let of_thread = TenantsOfThread::new(&tenants);
        for host in ["a.example", "A.Example", "b.example"] {
            assert_eq!(&*of_thread.of_host(host).unwrap().name, "a");
        }
        for host in ["b", "example", "x.a.example", ""] {
            assert!(of_thread.of_host(host).is_none(), "{host}");
        }
        tenants.replace([tenant("a")]);
        assert!(of_thread.of_host("a.example").is_none());
    }

    #[test]
    fn a_host_of_a_tenant_that_leaves_is_the_one_of_its_next_tenant() {
        let settings = Settings { hosts: vec!["h.example".into()], ..Settings::open() };
        let of = |name: &str| Tenant::new(name, &settings).unwrap();
        for (leaving, next) in [("a", "b"), ("b", "a")] {
            let former = Tenant { is_leaving: true, ..of(leaving) };
            let tenants = Tenants::new([former.clone(), of(next)]);
            let of_thread = TenantsOfThread::new(&tenants);
            assert_eq!(&*of_thread.of_host("h.example").unwrap().name, next);
            tenants.replace([of(next), former.clone()]);
            assert_eq!(&*of_thread.of_host("h.example").unwrap().name, next);
            tenants.replace([former]);
            assert_eq!(&*of_thread.of_host("h.example").unwrap().name, leaving);
        }
    }

    #[test]
    fn threads_share_no_tenant() {
        let tenants = Tenants::new([tenant("a")]);
        let [one, other] = [0, 1].map(|_| TenantsOfThread::new(&tenants).find("a").unwrap());
        assert!(!Arc::ptr_eq(&one, &other) && !Arc::ptr_eq(&one.name, &other.name));
    }
}

//! The end of a credential while a stream is open.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tenants::{Access, KeyDigest, Tenants};
use tokio::time::Instant;

/// The longest wait for the end of a key. The timer cannot represent much longer times.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Resolves when a credential has ended.
pub(crate) type Lapse = Pin<Box<dyn Future<Output = ()>>>;

/// Resolves when this key of a tenant ends, or is removed from the settings.
pub(crate) fn of_key(key: KeyDigest, tenants: Tenants, tenant: Arc<str>) -> Lapse {
    Box::pin(async move {
        let mut changes = tenants.changes();
        loop {
            // Observed before the key is looked up, so no change is missed.
            changes.mark_unchanged();
            let Some(wait) = valid_for(&tenants, &tenant, key) else { return };
            tokio::select! {
                () = tokio::time::sleep_until(Instant::now() + wait) => {}
                // The tenants are kept here, so their changes do not end.
                _changed = changes.changed() => {}
            }
        }
    })
}

/// How long to wait until the key is looked up again; `None` if it is not valid.
fn valid_for(tenants: &Tenants, tenant: &str, key: KeyDigest) -> Option<Duration> {
    let (tenant, now) = (tenants.find(tenant)?, SystemTime::now());
    let Access::Keys(keys) = &tenant.access else { return None };
    let key = keys.find(key, now).ok()?;
    let left = key.expires.and_then(|expires| expires.duration_since(now).ok());
    Some(left.unwrap_or(WAIT_MAX).min(WAIT_MAX))
}

#[cfg(test)]
mod tests {
    use tenants::{KeySettings, Settings, Tenant};

    use super::*;

    fn tenant(keys: &[(&str, &str)]) -> Tenant {
        let keys = keys.iter().map(|(key, expires)| {
            let expires = (*expires).to_owned();
            ((*key).to_owned(), KeySettings { expires, ..KeySettings::of_key(key) })
        });
        let settings =
            Settings { auth: Some("keys".into()), keys: keys.collect(), ..Settings::default() };
        Tenant::new("acme", &settings).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_credential_lapses_when_its_key_is_removed_and_not_before() {
        let tenants = Tenants::new([tenant(&[("ada", ""), ("bob", "2999-01-01T00:00:00Z")])]);
        let mut lapses =
            ["ada", "bob"].map(|key| of_key(KeyDigest::of(key), tenants.clone(), "acme".into()));
        let short = Duration::from_millis(10);
        for lapse in &mut lapses {
            assert!(tokio::time::timeout(short, lapse).await.is_err());
        }
        tenants.replace([tenant(&[("ada", "")])]);
        let [ada, bob] = lapses;
        tokio::time::timeout(short, bob).await.unwrap();
        let mut ada = ada;
        assert!(tokio::time::timeout(short, &mut ada).await.is_err(), "another key was removed");
        // Its end is now in the past.
        tenants.replace([tenant(&[("ada", "2020-01-01T00:00:00Z")])]);
        tokio::time::timeout(short, &mut ada).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_credential_of_a_removed_tenant_lapses() {
        let tenants = Tenants::new([tenant(&[("ada", "")])]);
        let lapse = of_key(KeyDigest::of("ada"), tenants.clone(), "acme".into());
        tenants.replace([]);
        tokio::time::timeout(Duration::from_millis(10), lapse).await.unwrap();
    }
}

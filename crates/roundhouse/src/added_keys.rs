//! Makes keys of clients: `roundhouse key`.
//!
//! A key is printed once. The settings file gets its SHA-256.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use tenants::{KEY_PREFIX, KeySettings};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::settings_file::SettingsFile;

/// The seconds of a day.
const DAY_SECS: u64 = 24 * 3_600;

/// A new key, and its settings.
pub(crate) struct NewKey {
    /// The key itself. It is secret.
    pub(crate) key: String,
    settings: KeySettings,
}

impl NewKey {
    /// A key of 32 random bytes.
    pub(crate) fn make(
        subject: Option<&str>,
        days: Option<u32>,
        scopes: Vec<String>,
    ) -> anyhow::Result<Self> {
        let key = random_key(KEY_PREFIX)?;
        let expires = expiry(days)?;
        let subject = subject.unwrap_or_default().to_owned();
        let settings = KeySettings { subject, expires, scopes, ..KeySettings::of_key(&key) };
        Ok(Self { key, settings })
    }

    /// Checks what a node would check of a tenant with this key.
    pub(crate) fn check(&self, tenant: &str, name: &str) -> anyhow::Result<()> {
        let keys = [(name.to_owned(), self.settings.clone())].into();
        let settings = tenants::Settings { auth: Some("keys".into()), keys, ..Default::default() };
        let wrong = match tenants::Tenant::new(tenant, &settings) {
            Ok(_) => return Ok(()),
            Err(wrong) => wrong.iter().map(ToString::to_string).collect::<Vec<_>>(),
        };
        bail!("{}", wrong.join("; "))
    }

    /// The table of this key, as TOML.
    pub(crate) fn toml(&self, tenant: &str, name: &str) -> String {
        let KeySettings { sha256, subject, expires, scopes } = &self.settings;
        let mut table = format!("\n[tenants.{tenant}.keys.{name}]\n");
        for (key, value) in [("sha256", sha256), ("subject", subject), ("expires", expires)] {
            if !value.is_empty() {
                table += &format!("{key} = {}\n", toml::Value::String(value.clone()));
            }
        }
        if !scopes.is_empty() {
            table += &format!("scopes = {}\n", toml::Value::from(scopes.clone()));
        }
        table
    }
}

/// A key of 32 random bytes, which begins so.
pub(crate) fn random_key(prefix: &str) -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).context("the system returned no random bytes")?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{prefix}{digits}"))
}

/// When a new key ends, as settings have it; empty for never.
pub(crate) fn expiry(days: Option<u32>) -> anyhow::Result<String> {
    days.map_or_else(|| Ok(String::new()), |days| after(SystemTime::now(), days))
}

/// The time so many days after another, without a fraction of a second.
fn after(now: SystemTime, days: u32) -> anyhow::Result<String> {
    let end = now + Duration::from_secs(u64::from(days) * DAY_SECS);
    let end = OffsetDateTime::from(end).replace_nanosecond(0)?;
    Ok(end.format(&Rfc3339)?)
}

/// Adds a key to the file. Returns what an operator should know of the result.
pub(crate) fn add(
    file: &Path,
    tenant: &str,
    name: &str,
    key: &NewKey,
) -> anyhow::Result<Vec<String>> {
    let old = SettingsFile::read(file)?;
    // Another error of the file is found when the result is checked.
    if let Ok(settings) = old.text().parse::<toml::Table>() {
        let tenants = settings.get("tenants").and_then(toml::Value::as_table);
        let Some(tenant_settings) = tenants.and_then(|tenants| tenants.get(tenant)) else {
            bail!(
                "{} has no tenant `{tenant}`; nothing was written: write the name of one that it has, or \
                 print a key for another file with `roundhouse key {tenant} {name} --print`",
                file.display()
            )
        };
        if let Some(there) = tenant_settings.get("keys").and_then(|keys| keys.get(name)) {
            let subject = there.get("subject").and_then(toml::Value::as_str);
            bail!(
                "`tenants.{tenant}.keys.{name}` is in {} already; nothing was written: to replace a key, \
                 make one with another name and `--subject {}`, give it to the client, and then remove \
                 the old one",
                file.display(),
                subject.filter(|subject| !subject.is_empty()).unwrap_or(name)
            )
        }
    }
    old.append(&key.toml(tenant, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_the_table_has_the_hash_alone() {
        let [one, other] =
            [0, 1].map(|_| NewKey::make(Some("ada"), Some(30), vec!["read".into()]).unwrap());
        assert_ne!(one.key, other.key);
        assert_eq!(one.key.len(), KEY_PREFIX.len() + 64);
        let table = one.toml("acme", "ada-2");
        assert!(!table.contains(&one.key[KEY_PREFIX.len()..]), "{table}");
        let read: toml::Table = table.parse().unwrap();
        let written = &read["tenants"]["acme"]["keys"]["ada-2"];
        assert_eq!(written["sha256"].as_str(), Some(&*KeySettings::of_key(&one.key).sha256));
        assert_eq!(written["subject"].as_str(), Some("ada"));
        assert_eq!(written["scopes"][0].as_str(), Some("read"));
    }

    #[test]
    fn a_key_ends_after_whole_days() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_769_860_800_750);
        assert_eq!(after(now, 1).unwrap(), "2026-02-01T12:00:00Z");
    }
}

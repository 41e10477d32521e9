//! Makes tokens of operators: `roundhouse admin-key`.
//!
//! A token is printed once. The settings file gets its SHA-256.

use std::path::Path;

use anyhow::bail;
use front::{ADMIN_KEY_PREFIX, AdminCredentialSettings, is_credential_name};
use tenants::KeySettings;

use crate::added_keys::{expiry, random_key};
use crate::settings_file::SettingsFile;

/// A new token, and the settings of its credential.
pub(crate) struct NewAdminKey {
    /// The token itself. It is secret.
    pub(crate) token: String,
    name: String,
    settings: AdminCredentialSettings,
}

impl NewAdminKey {
    /// A token of 32 random bytes.
    pub(crate) fn make(name: &str, role: &str, days: Option<u32>) -> anyhow::Result<Self> {
        if !is_credential_name(name) {
            bail!(
                "the name of a credential has 1 to 64 letters of ASCII, digits, `-` and `_` only; write \
                 another"
            );
        }
        let token = random_key(ADMIN_KEY_PREFIX)?;
        let sha256 = KeySettings::of_key(&token).sha256;
        let (role, expires) = (role.to_owned(), expiry(days)?);
        let settings = AdminCredentialSettings { sha256, role, expires };
        Ok(Self { token, name: name.to_owned(), settings })
    }

    /// The table of this credential, as TOML.
    pub(crate) fn toml(&self) -> String {
        let AdminCredentialSettings { sha256, role, expires } = &self.settings;
        let mut table = format!("\n[admin.credentials.{}]\n", self.name);
        for (key, value) in [("sha256", sha256), ("role", role), ("expires", expires)] {
            if !value.is_empty() {
                table += &format!("{key} = {}\n", toml::Value::String(value.clone()));
            }
        }
        table
    }
}

/// Adds a credential to the file. Returns what an operator should know of the result.
pub(crate) fn add(file: &Path, key: &NewAdminKey) -> anyhow::Result<Vec<String>> {
    let old = SettingsFile::read(file)?;
    // Another error of the file is found when the result is checked.
    if let Ok(settings) = old.text().parse::<toml::Table>()
        && let Some(admin) = settings.get("admin")
        && admin.get("credentials").is_some_and(|all| all.get(&key.name).is_some())
    {
        bail!(
            "`admin.credentials.{}` is in {} already; nothing was written: to replace a token, make one \
             with another name, use it, and then remove the old one",
            key.name,
            file.display()
        )
    }
    old.append(&key.toml())
}

#[cfg(test)]
mod tests {
    use front::AdminSettings;

    use super::*;

    #[test]
    fn tokens_differ_and_the_table_has_the_hash_alone() {
        let [one, other] = [0, 1].map(|_| NewAdminKey::make("ops", "operate", Some(30)).unwrap());
        assert_ne!(one.token, other.token);
        let table = one.toml();
        assert!(!table.contains(&one.token[ADMIN_KEY_PREFIX.len()..]), "{table}");
        let read: toml::Table = table.parse().unwrap();
        let written = read["admin"]["credentials"].clone().try_into().unwrap();
        let settings = AdminSettings { credentials: written, ..AdminSettings::default() };
        assert_eq!(settings.problems(), Vec::<String>::new());
        assert!(NewAdminKey::make("a.b", "read", None).is_err());
    }
}

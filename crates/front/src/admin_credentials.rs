//! The credentials of operators: which tokens the listener for operators accepts, and for what.
//!
//! A token is random and long, as a key of a client is, and the settings have its SHA-256 alone. It is
//! found by that, so the time of the search tells nothing about it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tenants::{KEY_PREFIX, KeyDigest, time_of};

use crate::AdminSettings;

/// The beginning of each token that `roundhouse admin-key` makes.
pub const ADMIN_KEY_PREFIX: &str = "rha_";

/// Most credentials; more are refused.
const CREDENTIALS_MAX: usize = 1_000;

/// Most characters of a credential's name, which logs have.
const NAME_MAX: usize = 64;

/// The name of the credential that `admin.token_file` holds.
const TOKEN_FILE: &str = "admin.token_file";

/// The settings of one credential.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminCredentialSettings {
    /// The SHA-256 of the token, as 64 hexadecimal digits.
    pub sha256: String,
    /// `"read"`: lists nodes, tenants and sessions; `"operate"`: everything.
    pub role: String,
    /// When the credential ends, as a time of RFC 3339. Empty: never.
    pub expires: String,
}

/// What a credential may do. Each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Read.
    Read,
    /// Change something.
    Operate,
}

impl Role {
    fn parse(written: &str) -> Option<Self> {
        [Self::Read, Self::Operate].into_iter().find(|role| role.to_string() == written)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Operate => "operate",
        })
    }
}

/// Whether a credential may have this name: logs have it, and settings name it.
pub fn is_credential_name(name: &str) -> bool {
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
    !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(is_plain)
}

/// The credentials of a node, which can change while it runs. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct AdminCredentials(Arc<RwLock<Table>>);

type Table = HashMap<KeyDigest, AdminCredential>;

/// One credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdminCredential {
    pub(crate) name: Arc<str>,
    pub(crate) role: Role,
    expires: Option<SystemTime>,
}

/// Why a token is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CredentialProblem {
    /// No credential has it.
    Unknown,
    /// The credential with this name has ended.
    Expired(Arc<str>),
}

impl AdminCredentials {
    /// The credentials of these settings. Those that [`AdminSettings::problems`] names are left out.
    pub fn new(settings: &AdminSettings) -> Self {
        let new = Self::default();
        new.replace(settings);
        new
    }

    /// Replaces all credentials.
    pub fn replace(&self, settings: &AdminSettings) {
        let read = |(name, written): (&String, _)| read(name, written).ok();
        let mut table: Table = settings.credentials.iter().filter_map(read).collect();
        if let Some(token) = &settings.token {
            let name = Arc::from(TOKEN_FILE);
            let credential = AdminCredential { name, role: Role::Operate, expires: None };
            table.insert(token.digest(), credential);
        }
        // The table is replaced as a whole, so it is right in any case.
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = table;
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The credential with this token, if it is valid at this time.
    pub(crate) fn find(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<AdminCredential, CredentialProblem> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let credential = table.get(&KeyDigest::of(token)).ok_or(CredentialProblem::Unknown)?;
        match credential.expires {
            Some(expires) if expires <= now => {
                Err(CredentialProblem::Expired(Arc::clone(&credential.name)))
            }
            _ => Ok(credential.clone()),
        }
    }
}

/// What is wrong with the credentials of settings. No text has a token.
pub(crate) fn problems(settings: &BTreeMap<String, AdminCredentialSettings>) -> Vec<String> {
    let mut wrong = Vec::new();
    if settings.len() > CREDENTIALS_MAX {
        wrong.push(format!(
            "`admin.credentials` has more than {CREDENTIALS_MAX} credentials; remove those that are not \
             used"
        ));
    }
    let mut names: HashMap<KeyDigest, &str> = HashMap::new();
    for (name, written) in settings {
        match read(name, written) {
            Ok((digest, _)) => {
                if let Some(other) = names.insert(digest, name) {
                    wrong.push(format!(
                        "`admin.credentials.{name}.sha256` is that of `admin.credentials.{other}` too; \
                         remove one of them, or make another token"
                    ));
                }
            }
            Err(all) => wrong.extend(all),
        }
    }
    wrong
}

fn read(
    name: &str,
    written: &AdminCredentialSettings,
) -> Result<(KeyDigest, AdminCredential), Vec<String>> {
    let is_token = |text: &str| text.contains(ADMIN_KEY_PREFIX) || text.contains(KEY_PREFIX);
    // An operator may have written the token anywhere.
    let shown = |text: &str| if is_token(text) { "a token" } else { text }.to_owned();
    let AdminCredentialSettings { sha256, role, expires } = written;
    let mut wrong = Vec::new();
    if !is_credential_name(name) {
        wrong.push(format!(
            "`admin.credentials` has the name {:?}; write 1 to {NAME_MAX} letters, digits, `-` and `_`",
            shown(name)
        ));
    }
    let at = format!("admin.credentials.{}", shown(name));
    let digest = KeyDigest::parse(sha256);
    if digest.is_none() && is_token(sha256) {
        wrong.push(format!(
            "`{at}.sha256` is a token itself, which now stands in a file; make a new one with \
             `roundhouse admin-key`, which writes its SHA-256, and use this one no more"
        ));
    } else if digest.is_none() {
        wrong.push(format!(
            "`{at}.sha256` is not a SHA-256, which has 64 hexadecimal digits; make a token with \
             `roundhouse admin-key NAME --role read`, which writes it"
        ));
    }
    let parsed = Role::parse(role);
    if parsed.is_none() {
        wrong.push(format!(
            "`{at}.role` is {:?}; write \"read\" (lists) or \"operate\" (everything)",
            shown(role)
        ));
    }
    let ends = (!expires.is_empty()).then(|| time_of(expires));
    if ends == Some(None) {
        wrong.push(format!(
            "`{at}.expires` is {:?}, which is not a time; write one as in \"2027-01-31T00:00:00Z\"",
            shown(expires)
        ));
    }
    match (digest, parsed) {
        (Some(digest), Some(role)) if wrong.is_empty() => {
            Ok((digest, AdminCredential { name: name.into(), role, expires: ends.flatten() }))
        }
        _ => Err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenants::KeySettings;

    use super::*;
    use crate::AdminToken;

    fn credential(token: &str, role: &str) -> AdminCredentialSettings {
        let sha256 = KeySettings::of_key(token).sha256;
        AdminCredentialSettings { sha256, role: role.into(), expires: String::new() }
    }

    fn settings(all: &[(&str, AdminCredentialSettings)]) -> AdminSettings {
        let credentials = all.iter().map(|(name, one)| ((*name).to_owned(), one.clone()));
        AdminSettings { credentials: credentials.collect(), ..AdminSettings::default() }
    }

    #[test]
    fn a_token_is_found_until_its_credential_ends_or_is_removed() {
        let ends = AdminCredentialSettings {
            expires: "2026-01-31T12:00:00Z".into(),
            ..credential("b", "read")
        };
        let mut written = settings(&[("ops", credential("a", "operate")), ("board", ends)]);
        written.token = AdminToken::new("t");
        let credentials = AdminCredentials::new(&written);
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_769_860_800);
        let find = |token, now| {
            let found = credentials.find(token, now);
            found.map(|found| format!("{} {}", found.name, found.role))
        };
        assert_eq!(find("a", end), Ok("ops operate".into()));
        assert_eq!(find("t", end), Ok("admin.token_file operate".into()));
        assert_eq!(find("b", end - Duration::from_secs(1)), Ok("board read".into()));
        assert_eq!(find("b", end), Err(CredentialProblem::Expired("board".into())));
        assert_eq!(find("", end), Err(CredentialProblem::Unknown));
        credentials.replace(&settings(&[]));
        assert_eq!(find("a", end), Err(CredentialProblem::Unknown));
        assert!(credentials.is_empty());
    }

    #[test]
    fn wrong_settings_are_named_without_a_token() {
        let token = format!("{ADMIN_KEY_PREFIX}{}", "0".repeat(64));
        let wrong = problems(
            &settings(&[
                ("a", AdminCredentialSettings { sha256: token.clone(), ..credential("", "read") }),
                ("b", AdminCredentialSettings { sha256: "gg".into(), ..credential("", "read") }),
                ("c", credential("c", "admin")),
                ("d", credential("d", "")),
                (
                    "e",
                    AdminCredentialSettings { expires: token.clone(), ..credential("e", "read") },
                ),
                ("f f", credential("f", "read")),
                ("g", credential("h", "read")),
                ("h", credential("h", "operate")),
            ])
            .credentials,
        );
        assert_eq!(wrong.len(), 7, "{wrong:#?}");
        let text = wrong.join("\n");
        assert!(!text.contains(&token), "{text}");
        for place in ["a.sha256", "b.sha256", "c.role", "d.role", "e.expires", "h.sha256"] {
            assert!(text.contains(&format!("`admin.credentials.{place}`")), "{place}: {text}");
        }
    }
}

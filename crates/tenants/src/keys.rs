//! The keys with which clients authenticate at an endpoint.
//!
//! A key is 32 random bytes that `roundhouse key` makes and shows once. The settings have its SHA-256
//! only. A key is random and long, so a slow or salted hash would not make it harder to find.

use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::scopes::is_scope;
use crate::{ClientName, Error, Principal, Scopes};

/// The beginning of each key, by which people and scanners of secrets recognise it.
pub const KEY_PREFIX: &str = "rhk_";

/// Most keys of one tenant.
const KEYS_MAX: usize = 10_000;

/// Most characters of a subject.
const SUBJECT_MAX: usize = 128;

/// The settings of one key.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeySettings {
    /// The SHA-256 of the key, as 64 hexadecimal digits.
    pub sha256: String,
    /// Who the client is: sessions belong to the subject. Empty: the name of the key. Two keys with one
    /// subject are valid at the same time while a client changes from one to the other.
    pub subject: String,
    /// When the key ends, as a time of RFC 3339. Empty: never.
    pub expires: String,
    /// The scopes of clients with the key, for the rules in `permissions`.
    pub scopes: Vec<String>,
}

impl KeySettings {
    /// The settings of this key.
    pub fn of_key(key: &str) -> Self {
        let sha256 = digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { sha256, ..Self::default() }
    }
}

/// A key that a client may present.
#[derive(Clone, Debug)]
pub struct Key {
    /// The name of the key in the settings.
    pub name: Box<str>,
    /// The client that has the key.
    pub principal: Principal,
    /// When the key ends.
    pub expires: Option<SystemTime>,
    /// The scopes of the client.
    pub scopes: Scopes,
}

/// Why a presented key is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyProblem {
    /// The tenant does not have this key.
    Unknown,
    /// The key of this client has ended.
    Expired(Principal),
}

/// The SHA-256 of a presented key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// The digest of this key.
    pub fn of(presented: &str) -> Self {
        Self(digest(presented))
    }

    /// Reads a digest that is written as 64 hexadecimal digits.
    pub fn parse(written: &str) -> Option<Self> {
        hexadecimal(written).map(Self)
    }
}

/// The keys of a tenant.
#[derive(Debug, Default)]
pub struct Keys(HashMap<KeyDigest, Key>);

impl Keys {
    /// The keys of these settings, or all errors in them.
    pub(crate) fn new(
        tenant: &str,
        settings: &BTreeMap<String, KeySettings>,
    ) -> Result<Self, Vec<Error>> {
        let mut keys = HashMap::new();
        let mut names: HashMap<KeyDigest, &str> = HashMap::new();
        let mut wrong = Vec::new();
        if settings.len() > KEYS_MAX {
            wrong.push(Error::TooManyKeys { name: tenant.into(), max: KEYS_MAX });
        }
        for (name, written) in settings {
            match read(tenant, name, written) {
                Ok((digest, _)) if let Some(other) = names.insert(digest, name) => {
                    let (name, other) = (name.clone(), other.to_owned());
                    wrong.push(Error::SameKey { tenant: tenant.into(), name, other });
                }
                Ok((digest, key)) => {
                    keys.insert(digest, key);
                }
                Err(errors) => wrong.extend(errors),
            }
        }
        if wrong.is_empty() { Ok(Self(keys)) } else { Err(wrong) }
    }

    /// The number of keys.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The number of keys of this client.
    pub fn count_of(&self, principal: &Principal) -> usize {
        self.0.values().filter(|key| key.principal == *principal).count()
    }

    /// The name of the key with this digest.
    pub fn name(&self, digest: KeyDigest) -> Option<&str> {
        Some(&self.0.get(&digest)?.name)
    }

    /// The key with this digest, if it is valid at this time.
    pub fn find(&self, digest: KeyDigest, now: SystemTime) -> Result<&Key, KeyProblem> {
        // The digest tells nothing about the key, so the time of this search may depend on it.
        let key = self.0.get(&digest).ok_or(KeyProblem::Unknown)?;
        if key.expires.is_some_and(|expires| expires <= now) {
            return Err(KeyProblem::Expired(Principal::named(key.principal.name())));
        }
        Ok(key)
    }
}

fn read(tenant: &str, name: &str, written: &KeySettings) -> Result<(KeyDigest, Key), Vec<Error>> {
    let at = || (tenant.to_owned(), name.to_owned());
    let subject = if written.subject.is_empty() { name } else { &written.subject };
    let is_plain = !subject.is_empty()
        && subject.len() <= SUBJECT_MAX
        && subject.bytes().all(|byte| byte.is_ascii_graphic())
        && !subject.starts_with(KEY_PREFIX);
    let mut wrong = Vec::new();
    if !is_plain {
        let (tenant, name) = at();
        wrong.push(Error::KeySubject { tenant, name, max: SUBJECT_MAX });
    }
    for scope in written.scopes.iter().filter(|scope| !is_scope(scope)) {
        let (tenant, name) = at();
        // An operator may have written the key there.
        let is_key = scope.contains(KEY_PREFIX);
        let written = if is_key { "a key" } else { scope }.to_owned();
        wrong.push(Error::KeyScope { tenant, name, written });
    }
    let digest = hexadecimal(&written.sha256);
    if digest.is_none() {
        let (tenant, name) = at();
        let is_key = written.sha256.starts_with(KEY_PREFIX);
        wrong.push(match is_key {
            true => Error::KeyInSettings { tenant, name },
            false => Error::KeyHash { tenant, name },
        });
    }
    let expires = match &*written.expires {
        "" => None,
        text => match time_of(text) {
            Some(time) => Some(time),
            None => {
                let (tenant, name) = at();
                // An operator may have written the key there.
                let is_key = text.contains(KEY_PREFIX);
                let written = if is_key { "a key" } else { text }.to_owned();
                wrong.push(Error::KeyExpires { tenant, name, written });
                None
            }
        },
    };
    match digest {
        Some(digest) if wrong.is_empty() => {
            // The prefix keeps the subjects of keys apart from those of other kinds of credentials.
            let principal = ClientName::Key { subject }.principal();
            let scopes = Scopes::of(written.scopes.iter().map(String::as_str));
            Ok((KeyDigest(digest), Key { name: name.into(), principal, expires, scopes }))
        }
        _ => Err(wrong),
    }
}

/// Reads a time of RFC 3339.
pub fn time_of(written: &str) -> Option<SystemTime> {
    OffsetDateTime::parse(written, &Rfc3339).ok().map(SystemTime::from)
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

fn hexadecimal(text: &str) -> Option<[u8; 32]> {
    let text = text.as_bytes();
    let mut bytes = [0; 32];
    if text.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::{Access, Settings, Tenant};

    fn settings(keys: &[(&str, KeySettings)]) -> Settings {
        let keys = keys.iter().map(|(name, key)| ((*name).to_owned(), key.clone())).collect();
        Settings { auth: Some("keys".into()), keys, ..Settings::default() }
    }

    fn keys(written: &[(&str, KeySettings)]) -> Arc<Keys> {
        let tenant = Tenant::new("acme", &settings(written)).unwrap();
        let Access::Authenticated(credentials) = tenant.access else {
            panic!("{:?}", tenant.access)
        };
        credentials.keys.unwrap()
    }

    fn refusal(written: &[(&str, KeySettings)]) -> String {
        let wrong = Tenant::new("acme", &settings(written)).unwrap_err();
        wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_client_is_known_by_its_key_until_the_key_ends() {
        let ends =
            KeySettings { expires: "2026-01-31T12:00:00Z".into(), ..KeySettings::of_key("b") };
        let keys = keys(&[("ada", KeySettings::of_key("a")), ("bob", ends)]);
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_769_860_800);
        let find = |key, now| keys.find(KeyDigest::of(key), now).map(|key| key.principal.name());
        assert_eq!(find("a", end), Ok("key:ada"));
        assert_eq!(find("b", end - Duration::from_secs(1)), Ok("key:bob"));
        assert_eq!(find("b", end), Err(KeyProblem::Expired(Principal::named("key:bob"))));
        assert_eq!(find("c", end), Err(KeyProblem::Unknown));
        assert_eq!(find("", end), Err(KeyProblem::Unknown));
    }

    #[test]
    fn two_keys_of_one_subject_are_one_client() {
        let second = KeySettings { subject: "ada".into(), ..KeySettings::of_key("b") };
        let keys = keys(&[("ada", KeySettings::of_key("a")), ("ada-2027", second)]);
        let now = SystemTime::now();
        let [one, other] = ["a", "b"].map(|key| keys.find(KeyDigest::of(key), now).unwrap());
        assert_eq!(one.principal, other.principal);
        let nobody = ClientName::Key { subject: "ada-2027" }.principal();
        assert_eq!(
            (keys.count(), keys.count_of(&one.principal), keys.count_of(&nobody)),
            (2, 2, 0)
        );
    }

    #[test]
    fn wrong_settings_of_keys_are_named_without_a_key() {
        let written =
            |sha256: &str| KeySettings { sha256: sha256.into(), ..KeySettings::default() };
        let key = format!("{KEY_PREFIX}{}", "0".repeat(64));
        let text = refusal(&[
            ("a", written("")),
            ("b", written(&key)),
            ("c", written(&"g".repeat(64))),
            ("d", KeySettings { expires: "soon".into(), ..KeySettings::of_key("d") }),
            ("e", KeySettings { subject: "ada lovelace".into(), ..KeySettings::of_key("e") }),
            ("h", KeySettings { subject: key.clone(), ..KeySettings::of_key("h") }),
            ("i", KeySettings { expires: key.clone(), ..KeySettings::of_key("i") }),
            ("f", KeySettings::of_key("d2")),
            ("g", KeySettings::of_key("d2")),
        ]);
        assert_eq!(text.lines().count(), 8, "{text}");
        assert!(!text.contains(&key) && !text.contains("gggg"), "{text}");
        for name in ["a.sha256", "b.sha256", "c.sha256", "d.expires", "e.subject", "g.sha256"] {
            assert!(text.contains(&format!("`tenants.acme.keys.{name}`")), "{name}: {text}");
        }
        let auth = Settings { auth: Some(key.as_str().into()), ..Settings::default() };
        let wrong = Tenant::new("acme", &auth).unwrap_err();
        assert!(!wrong[0].to_string().contains(&key), "{wrong:?}");
    }

    #[test]
    fn keys_of_an_open_endpoint_are_refused() {
        let open =
            Settings { auth: Some("open".into()), ..settings(&[("a", KeySettings::of_key("a"))]) };
        let wrong = Tenant::new("acme", &open).unwrap_err();
        assert_eq!(wrong, [Error::KeysOfOpenTenant("acme".into())]);
    }
}

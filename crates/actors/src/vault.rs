//! Keeps secrets of users in the store, sealed, for all nodes.
//!
//! Names and seals are made with keys from the cluster's secret. A node writes with the present secret and also
//! reads what was written with a former one, so secrets can be rotated. A seal is of one name: copied to another
//! one, it does not open.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use backends::http::{Vault, VaultUnavailable};
use bytes::Bytes;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use store::{NoteKey, Store};

/// The uses of the keys.
const SEALS: &[u8] = b"roundhouse sealed notes 1";
const NAMES: &[u8] = b"roundhouse names of notes 1";

/// Keeps secrets of users in the store.
pub(crate) struct SealedNotes {
    store: Arc<dyn Store>,
    /// The present keys, then former ones.
    keys: Vec<Keys>,
    random: SystemRandom,
}

struct Keys {
    seal: LessSafeKey,
    name: hmac::Key,
}

impl Keys {
    fn of(secret: &[u8]) -> Option<Self> {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let seal = hmac::sign(&secret, SEALS);
        let name = hmac::sign(&secret, NAMES);
        let seal = UnboundKey::new(&CHACHA20_POLY1305, seal.as_ref()).ok()?;
        let name = hmac::Key::new(hmac::HMAC_SHA256, name.as_ref());
        Some(Self { seal: LessSafeKey::new(seal), name })
    }

    fn key(&self, name: &str) -> NoteKey {
        let mut key = [0; 32];
        key.copy_from_slice(hmac::sign(&self.name, name.as_bytes()).as_ref());
        NoteKey(key)
    }

    fn open(&self, name: &str, sealed: &Bytes) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut note = sealed.to_vec();
        let opened = self.seal.open_in_place(nonce, Aad::from(name.as_bytes()), &mut note).ok()?;
        Some(opened.to_vec())
    }
}

impl SealedNotes {
    /// With the first of these secrets. Without a secret, the keys are of this process.
    pub(crate) fn new(store: Arc<dyn Store>, secrets: &[Box<[u8]>]) -> Self {
        let random = SystemRandom::new();
        let mut keys: Vec<_> = secrets.iter().filter_map(|secret| Keys::of(secret)).collect();
        let mut own = [0; 32];
        if keys.is_empty() && random.fill(&mut own).is_ok() {
            keys.extend(Keys::of(&own));
        }
        Self { store, keys, random }
    }

    fn seal(&self, name: &str, note: &[u8]) -> Result<(NoteKey, Bytes), VaultUnavailable> {
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).map_err(|_| VaultUnavailable)?;
        let keys = self.keys.first().ok_or(VaultUnavailable)?;
        let mut sealed = note.to_vec();
        let aad = Aad::from(name.as_bytes());
        let sealing = Nonce::assume_unique_for_key(nonce);
        let done = keys.seal.seal_in_place_append_tag(sealing, aad, &mut sealed);
        done.map_err(|_| VaultUnavailable)?;
        sealed.splice(..0, nonce);
        Ok((keys.key(name), sealed.into()))
    }
}

#[async_trait::async_trait]
impl Vault for SealedNotes {
    fn random(&self) -> Result<[u8; 32], VaultUnavailable> {
        let mut random = [0; 32];
        self.random.fill(&mut random).map_err(|_| VaultUnavailable)?;
        Ok(random)
    }

    async fn read(&self, name: &str) -> Result<Option<Vec<u8>>, VaultUnavailable> {
        for keys in &self.keys {
            let sealed = self.store.note(&keys.key(name)).await.map_err(failed)?;
            if let Some(note) = sealed.and_then(|sealed| keys.open(name, &sealed)) {
                return Ok(Some(note));
            }
        }
        Ok(None)
    }

    async fn write(
        &self,
        name: &str,
        secret: &[u8],
        within: Duration,
    ) -> Result<(), VaultUnavailable> {
        let (key, sealed) = self.seal(name, secret)?;
        self.store.put_note(&key, sealed, within).await.map_err(failed)
    }

    async fn claim(&self, name: &str, within: Duration) -> Result<bool, VaultUnavailable> {
        let (key, sealed) = self.seal(name, &[])?;
        self.store.add_note(&key, sealed, within).await.map_err(failed)
    }

    async fn take(&self, name: &str) -> Result<Option<Vec<u8>>, VaultUnavailable> {
        let mut taken = None;
        // Under all keys: a secret that was written before a rotation must not stay.
        for keys in &self.keys {
            let sealed = self.store.take_note(&keys.key(name)).await.map_err(failed)?;
            taken = taken.or_else(|| keys.open(name, &sealed?));
        }
        Ok(taken)
    }
}

fn failed(error: store::Error) -> VaultUnavailable {
    tracing::debug!(%error, "a note of a user could not be read or written");
    VaultUnavailable
}

impl fmt::Debug for SealedNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealedNotes")
    }
}

#[cfg(test)]
mod tests {
    use store::Memory;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(60);

    fn notes(store: &Arc<dyn Store>, secrets: &[&str]) -> SealedNotes {
        let secrets: Vec<_> = secrets.iter().map(|secret| secret.as_bytes().into()).collect();
        SealedNotes::new(Arc::clone(store), &secrets)
    }

    #[tokio::test]
    async fn a_note_outlives_a_rotation_of_the_secret_and_no_more() {
        let store: Arc<dyn Store> = Arc::new(Memory::with_clock(|| Duration::ZERO));
        notes(&store, &["old"]).write("a", b"hunter2", WITHIN).await.unwrap();
        let read = async |secrets: &[&str], name| notes(&store, secrets).read(name).await.unwrap();
        assert_eq!(read(&["old"], "a").await.unwrap(), b"hunter2");
        assert_eq!(read(&["new", "old"], "a").await.unwrap(), b"hunter2");
        assert_eq!(read(&["new"], "a").await, None);
        assert_eq!(read(&["old"], "b").await, None);
        let rotated = notes(&store, &["new", "old"]);
        assert_eq!(rotated.take("a").await.unwrap().unwrap(), b"hunter2");
        assert_eq!(read(&["old"], "a").await, None);
    }

    #[tokio::test]
    async fn the_store_has_neither_a_secret_nor_its_name_and_a_copy_does_not_open() {
        let store: Arc<dyn Store> = Arc::new(Memory::with_clock(|| Duration::ZERO));
        let notes = notes(&store, &["secret"]);
        notes.write("ada", b"hunter2", WITHIN).await.unwrap();
        let (keys, other) = (&notes.keys[0], "bob");
        let sealed = store.note(&keys.key("ada")).await.unwrap().unwrap();
        assert!(!sealed.windows(7).any(|part| part == b"hunter2"));
        store.put_note(&keys.key(other), sealed, WITHIN).await.unwrap();
        assert_eq!(notes.read(other).await.unwrap(), None);
        assert!(notes.claim("once", WITHIN).await.unwrap());
        assert!(!notes.claim("once", WITHIN).await.unwrap());
    }
}

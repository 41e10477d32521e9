//! Notes: bytes under keys that belong to no session.

use super::*;
use crate::NoteKey;

const TTL: Duration = Duration::from_secs(60);

/// A key that no other test has.
fn key() -> NoteKey {
    let mut key = [0; 32];
    key.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&random().to_be_bytes()));
    NoteKey(key)
}

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// A note is read as it was written last.
pub async fn a_note_is_read_as_it_was_written(world: &dyn World) {
    let (store, key) = (world.store(), key());
    assert_eq!(store.note(&key).await.unwrap(), None);
    for text in ["one", "", "two"] {
        store.put_note(&key, bytes(text), TTL).await.unwrap();
        assert_eq!(store.note(&key).await.unwrap(), Some(bytes(text)));
    }
}

/// Of two callers one adds a note.
pub async fn a_note_is_added_only_where_there_is_none(world: &dyn World) {
    let (store, key) = (world.store(), key());
    assert!(store.add_note(&key, bytes("one"), TTL).await.unwrap());
    assert!(!store.add_note(&key, bytes("two"), TTL).await.unwrap());
    assert!(store.add_note(&key, bytes("one"), TTL).await.unwrap(), "a repetition");
    assert_eq!(store.note(&key).await.unwrap(), Some(bytes("one")));
}

/// A note is taken once.
pub async fn a_note_is_taken_once(world: &dyn World) {
    let (store, key) = (world.store(), key());
    store.put_note(&key, bytes("one"), TTL).await.unwrap();
    assert_eq!(store.take_note(&key).await.unwrap(), Some(bytes("one")));
    assert_eq!(store.take_note(&key).await.unwrap(), None);
    assert_eq!(store.note(&key).await.unwrap(), None);
}

/// A note is absent after its time to live.
pub async fn a_note_expires(world: &dyn World) {
    let (store, key) = (world.store(), key());
    store.put_note(&key, bytes("one"), Duration::from_millis(300)).await.unwrap();
    world.pass(Duration::from_millis(500)).await;
    assert_eq!(store.note(&key).await.unwrap(), None);
    assert!(store.add_note(&key, bytes("two"), TTL).await.unwrap());
}

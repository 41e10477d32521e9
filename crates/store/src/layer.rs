//! A store in front of another, which changes some operations and passes the rest on. For tests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::SessionId;

use crate::{
    Appended, Batch, Claimed, Error, Expected, Incarnation, Lease, Marking, NoteKey, Owner,
    Presence, Primary, PrimaryId, Record, Renewed, Revocation, RevocationGeneration,
    RevocationList, ScanCursor, Scanned, State, StateExtension, Store, Token,
};

/// Declares the layer, and makes each layer a store, from one list of operations.
macro_rules! layer {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)+) => {
        /// A store in front of another one. Each operation that an implementation does not
        /// override is that of the [inner](Self::inner) store.
        #[async_trait::async_trait]
        pub trait StoreLayer: Send + Sync + 'static {
            /// Returns the store behind this one, or an error if it cannot be reached.
            fn inner(&self) -> Result<Arc<dyn Store>, Error>;

            $(
                #[doc = concat!("[`Store::", stringify!($name), "`].")]
                async fn $name(&self, $($argument: $type),*) -> Result<$answer, Error> {
                    self.inner()?.$name($($argument),*).await
                }
            )+

            /// [`Store::acknowledge`].
            fn acknowledge(&self, primaries: &[PrimaryId]) {
                if let Ok(inner) = self.inner() {
                    inner.acknowledge(primaries);
                }
            }

            /// [`Store::is_reachable`].
            fn is_reachable(&self) -> bool {
                self.inner().is_ok_and(|inner| inner.is_reachable())
            }
        }

        #[async_trait::async_trait]
        impl<L: StoreLayer> Store for L {
            $(
                async fn $name(&self, $($argument: $type),*) -> Result<$answer, Error> {
                    StoreLayer::$name(self, $($argument),*).await
                }
            )+

            fn acknowledge(&self, primaries: &[PrimaryId]) {
                StoreLayer::acknowledge(self, primaries);
            }

            fn is_reachable(&self) -> bool {
                StoreLayer::is_reachable(self)
            }
        }
    };
}

layer! {
    fn create(session: &SessionId, record: Record, ttl: Duration) -> ();
    fn read(session: &SessionId) -> Option<Record>;
    fn read_log(session: &SessionId) -> Vec<(u64, Bytes)>;
    fn claim(
        session: &SessionId,
        expected: Expected,
        new: Owner,
        at: Option<PrimaryId>,
        ttl: Duration
    ) -> Claimed;
    fn append(batch: Batch) -> Appended;
    fn reassert(record: Record, ring: Batch) -> Appended;
    fn save(session: &SessionId, token: Token, state: State) -> u64;
    fn extend_state(session: &SessionId, token: Token, extension: StateExtension) -> u64;
    fn release(
        session: &SessionId,
        token: Token,
        at: Option<PrimaryId>,
        ttl: Duration
    ) -> ();
    fn end(session: &SessionId, token: Token, ttl: Duration) -> ();
    fn renew(lease: Lease, ttl: Duration) -> Renewed;
    fn leave(incarnation: Incarnation, ttl: Duration) -> ();
    fn nodes() -> Vec<Lease>;
    fn presence(incarnation: Incarnation) -> Presence;
    fn mark_dead(
        incarnation: Incarnation,
        by: Incarnation,
        also_dead: &[Incarnation],
        seen: Option<u64>,
        ttl: Duration
    ) -> Marking;
    fn revoke(revocations: &[Revocation], now_ms: u64) -> RevocationGeneration;
    fn revocations() -> (RevocationGeneration, RevocationList);
    fn revocation_generation() -> RevocationGeneration;
    fn scan(from: ScanCursor, count: usize) -> Scanned;
    fn note(key: &NoteKey) -> Option<Bytes>;
    fn put_note(key: &NoteKey, note: Bytes, ttl: Duration) -> ();
    fn add_note(key: &NoteKey, note: Bytes, ttl: Duration) -> bool;
    fn take_note(key: &NoteKey) -> Option<Bytes>;
    fn primaries() -> Vec<Primary>;
    fn sweep() -> usize;
}

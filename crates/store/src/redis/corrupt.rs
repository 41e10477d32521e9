//! Ends sessions whose record or log is corrupt.
//!
//! A record of a newer layout is not changed: a node of that version can read it. A record of
//! this version's layout that cannot be decoded is useless to every node, and each request for
//! the session would fail until it expires. It is replaced by a tombstone, so that the client
//! gets the answer for an ended session and opens another one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use protocol::SessionId;
use redis::Value;

use super::answer::{script_result, unavailable};
use super::script::ScriptName;
use super::{Redis, layout, millis};
use crate::{Digest, Error, Incarnation, Owner, Record, RecordStatus, State, Token};

/// How long the tombstone of a corrupt session is kept: longer than its owner, if it has one,
/// needs to detect that the session has ended.
const TOMBSTONE: Duration = Duration::from_secs(3_600);

/// The shortest time between two log lines about corrupt sessions.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// The start of the clock of [`NEXT_LOG`].
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// When the next log line may be written, in milliseconds since [`START`].
static NEXT_LOG: AtomicU64 = AtomicU64::new(0);

impl Redis {
    /// Replaces a record by a tombstone if the record still has these bytes. Returns the
    /// tombstone.
    pub(super) async fn end_corrupt(
        &self,
        session: &SessionId,
        bytes: &[u8],
    ) -> Result<Record, Error> {
        let no_owner = Owner { token: Token { counter: 0, random: 0 }, node: Incarnation(0) };
        let tombstone = Record {
            owner: bytes.get(2..26).and_then(layout::decode_owner).unwrap_or(no_owner),
            former: Vec::new(),
            tenant: "".into(),
            principal: Digest([0; 32]),
            revision: "".into(),
            initialize: Arc::default(),
            state: State::default(),
            status: RecordStatus::Ended,
        };
        let command = self
            .session_script(ScriptName::EndCorrupt, session)
            .arg(bytes)
            .arg(&super::encoded(&tombstone)?)
            .arg(millis(TOMBSTONE));
        let answer = self.client.execute(command).await?.value;
        if matches!(&answer, Value::Array(words) if words[..] == [Value::Int(11)]) {
            return Err(unavailable(
                "the corrupt session record was replaced by another write; read it again",
            ));
        }
        script_result(answer)?;
        if may_log() {
            tracing::error!(
                ?session,
                bytes = bytes.len(),
                "corrupt session ended: its record or log in redis cannot be decoded; check \
                 whether another program writes to this redis"
            );
        }
        Ok(tombstone)
    }
}

fn may_log() -> bool {
    let now = u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (next, later) = (NEXT_LOG.load(Ordering::Relaxed), now.saturating_add(millis(LOG_PAUSE)));
    now >= next
        && NEXT_LOG.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

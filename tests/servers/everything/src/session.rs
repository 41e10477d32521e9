//! The state that the server keeps for one client.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rmcp::ErrorData;
use rmcp::model::LoggingLevel;

/// The most resources that one client may watch; a further one is refused with -32602.
const WATCHED_MAX: usize = 64;

/// The state of one session.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// The number of the least severe level that is sent; 0 sends everything.
    level: AtomicU8,
    watched: Mutex<HashSet<String>>,
    has_dynamic_tool: AtomicBool,
    cancelled: AtomicU64,
}

impl Session {
    pub(crate) fn set_level(&self, level: LoggingLevel) {
        self.level.store(level as u8, Ordering::Relaxed);
    }

    /// Whether the client wants messages of that level (LOG-02).
    pub(crate) fn wants(&self, level: LoggingLevel) -> bool {
        level as u8 >= self.level.load(Ordering::Relaxed)
    }

    pub(crate) fn subscribe(&self, uri: String) -> Result<(), ErrorData> {
        let mut watched = self.watched();
        if watched.len() >= WATCHED_MAX && !watched.contains(&uri) {
            let message = format!("at most {WATCHED_MAX} resources can be watched");
            return Err(ErrorData::invalid_params(message, None));
        }
        watched.insert(uri);
        Ok(())
    }

    pub(crate) fn unsubscribe(&self, uri: &str) {
        self.watched().remove(uri);
    }

    pub(crate) fn watches(&self, uri: &str) -> bool {
        self.watched().contains(uri)
    }

    fn watched(&self) -> MutexGuard<'_, HashSet<String>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds or removes the dynamic tool. Returns whether it is listed now.
    pub(crate) fn toggle_dynamic_tool(&self) -> bool {
        !self.has_dynamic_tool.fetch_xor(true, Ordering::Relaxed)
    }

    pub(crate) fn has_dynamic_tool(&self) -> bool {
        self.has_dynamic_tool.load(Ordering::Relaxed)
    }

    pub(crate) fn count_cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
    }

    /// How many calls the client has cancelled so far.
    pub(crate) fn cancelled(&self) -> u64 {
        self.cancelled.load(Ordering::Relaxed)
    }
}

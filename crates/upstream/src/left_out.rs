//! The tools that are left out of a server's lists, for logs and operators.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::header_params::Invalid;

/// Most tools that are logged and remembered. The list of a server may have a new one each time.
const NOTED_MAX: usize = 100;
/// Longest text of a tool, in characters; a longer one is cut.
const TEXT_MAX: usize = 200;

/// The tools of a backend that are left out, once each.
#[derive(Default)]
pub(crate) struct LeftOut(Mutex<BTreeSet<String>>);

impl LeftOut {
    /// Logs the tools that were not noted yet.
    pub(crate) fn note(&self, backend: &str, tools: &[(String, Invalid)]) {
        for (name, why) in tools {
            let text = format!("tool {name:?} is left out: {why}");
            let text: String = text.chars().take(TEXT_MAX).collect();
            let mut noted = self.lock();
            let is_last = noted.len() + 1 == NOTED_MAX;
            let is_new = noted.len() < NOTED_MAX && noted.insert(text.clone());
            drop(noted);
            if is_new {
                tracing::warn!(backend, "{text}");
            }
            if is_new && is_last {
                tracing::warn!(backend, "further tools that are left out are not logged");
            }
        }
    }

    /// The tools that were left out.
    pub(crate) fn remarks(&self) -> Vec<String> {
        self.lock().iter().cloned().collect()
    }

    /// No code panics while it holds the lock, and none waits.
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tool_is_noted_once_within_a_bound() {
        let left_out = LeftOut::default();
        let tool = |name: &str| (name.to_owned(), Invalid::TooMany);
        for _ in 0..2 {
            left_out.note("acme/main", &[tool("a"), tool(&"b".repeat(1_000))]);
        }
        let remarks = left_out.remarks();
        assert!(remarks[0].starts_with("tool \"a\" is left out: the tool has more than 64"));
        assert_eq!((remarks.len(), remarks[1].len()), (2, TEXT_MAX));
        (0..1_000).for_each(|n| left_out.note("acme/main", &[tool(&n.to_string())]));
        assert_eq!(left_out.remarks().len(), NOTED_MAX);
    }
}

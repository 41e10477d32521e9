//! The resources that a client has subscribed to.

use std::collections::BTreeSet;

/// The URIs of the resources, and their length together.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    uris: BTreeSet<Box<str>>,
    bytes: usize,
}

impl Subscriptions {
    pub(crate) fn uris(&self) -> &BTreeSet<Box<str>> {
        &self.uris
    }

    /// The length of all URIs.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a URI. Returns whether it is new.
    pub(crate) fn add_uri(&mut self, uri: Box<str>) -> bool {
        let length = uri.len();
        let is_new = self.uris.insert(uri);
        self.bytes += if is_new { length } else { 0 };
        is_new
    }

    /// Removes a URI. Returns whether it was there.
    pub(crate) fn remove_uri(&mut self, uri: &str) -> bool {
        let was_there = self.uris.remove(uri);
        self.bytes -= if was_there { uri.len() } else { 0 };
        was_there
    }
}

impl FromIterator<Box<str>> for Subscriptions {
    fn from_iter<T: IntoIterator<Item = Box<str>>>(uris: T) -> Self {
        let mut subscriptions = Self::default();
        uris.into_iter().for_each(|uri| {
            subscriptions.add_uri(uri);
        });
        subscriptions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_the_uris_is_counted_once_for_each() {
        let mut subscriptions: Subscriptions = ["ab".into(), "c".into()].into_iter().collect();
        assert!(!subscriptions.add_uri("ab".into()));
        assert_eq!(subscriptions.bytes(), 3);
        assert!(subscriptions.remove_uri("ab"));
        assert!(!subscriptions.remove_uri("ab"));
        assert_eq!(subscriptions.bytes(), 1);
    }
}

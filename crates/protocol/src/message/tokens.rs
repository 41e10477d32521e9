//! The tokens with which a client's request is authorized at upstream servers. They are not part of its
//! bytes, and are never stored.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The tokens for the backends of a tenant that get one of each user. Cheap to clone.
#[derive(Clone, PartialEq)]
// One pointer wide, since each request has room for it.
pub struct UpstreamTokens(Arc<Box<[UpstreamToken]>>);

/// A token for one backend.
#[derive(Clone)]
pub struct UpstreamToken {
    /// The backend and the server behind it: a token is for one server only.
    pub backend: Arc<str>,
    /// The token.
    pub text: Arc<str>,
    /// Where it came from in this process; `None` where nothing follows if it is refused.
    pub source: Option<Arc<dyn TokenSource>>,
    /// Where the user links an account at the server first. Then there is no token.
    pub link: Option<Arc<AccountLink>>,
}

/// Where a user links an account at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountLink {
    /// Its id.
    pub id: String,
    /// The page that the user opens.
    pub url: String,
}

/// Where a token came from.
pub trait TokenSource: Any + Send + Sync {
    /// The server refused this token.
    fn note_refused(&self, token: &str);

    /// Whether the node that sent the token has to get another one.
    fn is_refused(&self) -> bool {
        false
    }
}

/// Another node sent the token, and has to get another one if it is refused.
#[derive(Debug, Default)]
pub struct OtherNode(AtomicBool);

impl TokenSource for OtherNode {
    fn note_refused(&self, _token: &str) {
        self.0.store(true, Ordering::Release);
    }

    fn is_refused(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl UpstreamTokens {
    /// These tokens.
    pub fn new(tokens: Vec<UpstreamToken>) -> Self {
        Self(Arc::new(tokens.into()))
    }

    /// All of them.
    pub fn all(&self) -> &[UpstreamToken] {
        &self.0
    }

    /// The token for a backend.
    pub fn of(&self, backend: &str) -> Option<&UpstreamToken> {
        self.0.iter().find(|token| *token.backend == *backend)
    }

    /// The same tokens without their sources.
    pub fn without_sources(&self) -> Self {
        self.0.iter().map(|token| UpstreamToken { source: None, ..token.clone() }).collect()
    }

    /// The backends whose servers refused a token of another node.
    pub fn refused(&self) -> impl Iterator<Item = &UpstreamToken> {
        let is_refused = |token: &&UpstreamToken| {
            token.source.as_ref().is_some_and(|source| source.is_refused())
        };
        self.0.iter().filter(is_refused)
    }

    /// The bytes that they keep.
    pub fn bytes(&self) -> usize {
        let link = |token: &UpstreamToken| {
            token.link.as_ref().map_or(0, |link| link.id.len() + link.url.len())
        };
        self.0.iter().map(|token| token.backend.len() + token.text.len() + link(token)).sum()
    }
}

impl FromIterator<UpstreamToken> for UpstreamTokens {
    fn from_iter<T: IntoIterator<Item = UpstreamToken>>(tokens: T) -> Self {
        Self(Arc::new(tokens.into_iter().collect()))
    }
}

impl PartialEq for UpstreamToken {
    fn eq(&self, other: &Self) -> bool {
        (&self.backend, &self.text, &self.link) == (&other.backend, &other.text, &other.link)
    }
}

/// Prints nothing of the tokens.
impl fmt::Debug for UpstreamTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UpstreamTokens({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_by_its_backend_and_never_printed() {
        let source: Option<Arc<dyn TokenSource>> = Some(Arc::new(OtherNode::default()));
        let token =
            UpstreamToken { backend: "a/main".into(), text: "hunter2".into(), source, link: None };
        let tokens = UpstreamTokens::new(vec![token]);
        assert_eq!(tokens.of("a/main").map(|token| &*token.text), Some("hunter2"));
        assert!(tokens.of("a/other").is_none() && tokens.bytes() == 13);
        assert!(tokens.without_sources().all()[0].source.is_none());
        assert_eq!(tokens.refused().count(), 0);
        tokens.all()[0].source.as_ref().unwrap().note_refused("hunter2");
        assert_eq!(tokens.refused().count(), 1);
        assert_eq!(tokens.without_sources(), tokens);
        assert!(!format!("{tokens:?}").contains("hunter2"));
    }
}

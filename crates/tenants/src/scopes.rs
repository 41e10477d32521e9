//! The scopes that a token has, or that a request needs.

use std::fmt;
use std::sync::Arc;

/// A set of scopes (RFC 6749, section 3.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scopes(Arc<[Box<str>]>);

impl Scopes {
    /// The set of these scopes. Words that no scope can be are left out.
    pub fn of<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let words = words.into_iter().filter(|word| is_scope(word));
        let mut all: Vec<Box<str>> = words.map(Box::from).collect();
        all.sort_unstable();
        all.dedup();
        Self(all.into())
    }

    /// Whether this scope is in the set.
    pub fn has(&self, scope: &str) -> bool {
        self.0.binary_search_by(|one| (**one).cmp(scope)).is_ok()
    }

    /// Whether each scope of `needed` is in the set.
    pub fn has_all(&self, needed: &Self) -> bool {
        needed.iter().all(|scope| self.has(scope))
    }

    /// The scopes of both sets.
    pub fn union(&self, other: &Self) -> Self {
        Self::of(self.iter().chain(other.iter()))
    }

    /// The scopes in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|scope| &**scope)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whether this can be a scope: visible ASCII without `"` and `\`.
pub(crate) fn is_scope(word: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    !word.is_empty() && word.bytes().all(fits)
}

impl fmt::Display for Scopes {
    /// With spaces between them, as in a challenge.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, scope) in self.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{scope}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_each_scope_once_and_no_other_words() {
        let scopes = Scopes::of(["b", "a", "", "b", "quo\"te", "größe"]);
        assert_eq!(scopes.to_string(), "a b");
        assert!(scopes.has("a") && !scopes.has("A") && !scopes.has(""));
        assert!(scopes.has_all(&Scopes::of(["b"])) && !scopes.has_all(&Scopes::of(["a", "c"])));
        assert!(scopes.has_all(&Scopes::default()));
    }
}

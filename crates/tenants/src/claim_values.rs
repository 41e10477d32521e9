//! Values of claims: those that rules name, or those of them that a token has.

use std::sync::Arc;

/// A set of pairs of a claim's name and one of its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimValues(
    /// Sorted. `None`: empty, so that the many empty sets share no counter.
    Option<Arc<[Pair]>>,
);

type Pair = (Box<str>, Box<str>);

impl ClaimValues {
    /// The set of these pairs.
    pub fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let pairs = pairs.into_iter().map(|(claim, value)| (claim.into(), value.into()));
        let mut all: Vec<Pair> = pairs.collect();
        all.sort_unstable();
        all.dedup();
        Self((!all.is_empty()).then(|| all.into()))
    }

    /// Whether the claim has this value.
    pub fn has(&self, claim: &str, value: &str) -> bool {
        let find = |(c, v): &Pair| (&**c, &**v).cmp(&(claim, value));
        self.all().binary_search_by(find).is_ok()
    }

    /// The claims, each once.
    pub fn claims(&self) -> impl Iterator<Item = &str> {
        self.all().chunk_by(|a, b| a.0 == b.0).map(|pairs| &*pairs[0].0)
    }

    /// The pairs in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all().iter().map(|(claim, value)| (&**claim, &**value))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn all(&self) -> &[Pair] {
        self.0.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_each_pair_once_and_no_other() {
        let all = ClaimValues::of([("b", "2"), ("a", "1"), ("b", "1"), ("a", "1")]);
        assert_eq!(all.iter().collect::<Vec<_>>(), [("a", "1"), ("b", "1"), ("b", "2")]);
        assert_eq!(all.claims().collect::<Vec<_>>(), ["a", "b"]);
        assert!(all.has("b", "2") && !all.has("a", "2") && !all.has("c", "1"));
        assert!(ClaimValues::of([]).is_empty() && !ClaimValues::default().has("a", "1"));
        assert_eq!(ClaimValues::of([]), ClaimValues::default());
    }
}

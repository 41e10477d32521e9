//! Patterns of names, in which `*` stands for any text.

/// Longest pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 512;

/// A pattern of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Box<str>);

impl Pattern {
    /// The pattern of this text.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Whether the whole name fits. The time grows with the product of the lengths at most.
    pub fn fits(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        // Each part at its first place: a later one leaves less for the parts behind it.
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }

    /// Whether a name that begins like this may fit.
    pub fn may_fit(&self, begin: &str) -> bool {
        let own = self.0.split('*').next().unwrap_or_default();
        let is_whole = own.len() == self.0.len();
        own.starts_with(begin) || (!is_whole && begin.starts_with(own))
    }

    /// Whether each name that begins like this fits.
    pub fn fits_all(&self, begin: &str) -> bool {
        let before_star = self.0.strip_suffix('*').filter(|before| !before.contains('*'));
        before_star.is_some_and(|before| begin.starts_with(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name, fits) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "anything", true),
            ("get_*", "get_", true),
            ("get_*", "get_x", true),
            ("get_*", "xget_x", false),
            ("*_x", "a_x", true),
            ("*_x", "a_xx", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "acb", false),
            ("a*b*b", "ab", false),
            ("a*b*b", "abb", true),
            ("a**c", "ac", true),
            ("*ab*", "aab", true),
            ("file:///a/*", "file:///a/../b", true),
        ] {
            assert_eq!(Pattern::new(pattern).fits(name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn a_template_may_fit_where_its_beginning_does() {
        for (pattern, begin, fits) in [
            ("x:/a/*", "x:/a/", true),
            ("x:/a/*", "x:/", true),
            ("x:/a/*", "x:/b", false),
            ("x:/a", "x:/a/", false),
            ("x:/a", "x:/", true),
            ("*", "x:/", true),
        ] {
            assert_eq!(Pattern::new(pattern).may_fit(begin), fits, "{pattern} {begin}");
        }
        for (pattern, begin, fits) in [
            ("x:/a/*", "x:/a/", true),
            ("*", "", true),
            ("x:/a/*", "x:/", false),
            ("x:/a/", "x:/a/", false),
            ("x:/*/b*", "x:/a/", false),
        ] {
            assert_eq!(Pattern::new(pattern).fits_all(begin), fits, "{pattern} {begin}");
        }
    }
}

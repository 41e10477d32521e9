//! An access token.

use std::fmt;
use std::sync::Arc;

use hyper::header::HeaderValue;

/// Longest access token that is used, in bytes.
pub(crate) const TOKEN_BYTES_MAX: usize = 8 << 10;

/// An access token, as the value of `Authorization`. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Token(Arc<HeaderValue>);

impl Token {
    /// A token of visible ASCII characters; `None` for any other text, or if it is too long.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_visible = text.bytes().all(|byte| matches!(byte, 0x21..=0x7E));
        if text.is_empty() || text.len() > TOKEN_BYTES_MAX || !is_visible {
            return None;
        }
        let mut value = HeaderValue::from_str(&format!("Bearer {text}")).ok()?;
        value.set_sensitive(true);
        Some(Self(Arc::new(value)))
    }

    /// The value of `Authorization`.
    pub(crate) fn header(&self) -> HeaderValue {
        HeaderValue::clone(&self.0)
    }

    /// The token itself.
    pub(crate) fn text(&self) -> &str {
        self.0.to_str().ok().and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default()
    }

    /// Whether both are the same.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// Prints nothing of the token.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_visible_characters_and_is_not_printed() {
        let token = Token::parse("hunter2.a-b_c~+/=").unwrap();
        assert_eq!(token.header(), "Bearer hunter2.a-b_c~+/=");
        assert!(!format!("{token:?} {:?}", token.header()).contains("hunter2"));
        let long = "x".repeat(TOKEN_BYTES_MAX + 1);
        for text in ["", "a b", "a\r\nX: y", "a\n", "\u{e9}", "a\0", &long] {
            assert!(Token::parse(text).is_none(), "{text:?}");
        }
    }
}

//! The owner of a session: a token that is unique to one claim, and the node that made the claim.

use std::fmt;

/// The fencing token of one session's owner. A node makes it before it claims the session.
///
/// Tokens are compared for equality, with both parts. The counter alone would repeat if a
/// failover lost a claim. The counter only orders tokens: it is one more than any that its node
/// has seen.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// How many owners the session has had, as far as the claiming node knew.
    pub counter: u64,
    /// 64 random bits, never used for another token. Event ids contain them too.
    pub random: u64,
}

impl Token {
    /// The token of a new session.
    pub const fn first(random: u64) -> Self {
        Self { counter: 1, random }
    }

    /// A token to claim a session whose present token is `self`.
    pub const fn next(self, random: u64) -> Self {
        Self { counter: self.counter.saturating_add(1), random }
    }

    /// Reads a token; `None` for any text that [`fmt::Display`] does not write.
    pub fn parse(text: &str) -> Option<Self> {
        let (counter, random) = text.split_once('.')?;
        let token = Self { counter: counter.parse().ok()?, random: hex(random)? };
        (token.to_string() == text).then_some(token)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:016x}", self.counter, self.random)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One run of a node: 64 random bits, new with every start of the process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// Reads an incarnation; `None` for any text that [`fmt::Display`] does not write.
    pub fn parse(text: &str) -> Option<Self> {
        hex(text).map(Self)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The owner of a session, and its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The token of the owner.
    pub token: Token,
    /// The node of the owner.
    pub node: Incarnation,
}

/// 16 lower-case hexadecimal digits.
fn hex(text: &str) -> Option<u64> {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let canonical = text.len() == 16 && text.bytes().all(digit);
    if canonical { u64::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_as_written_and_nothing_else_reads() {
        for token in [Token::first(0), Token::first(u64::MAX), Token { counter: 0, random: 7 }] {
            assert_eq!(Token::parse(&token.to_string()), Some(token));
        }
        for text in [
            "",
            "1",
            "1.",
            "01.000000000000000a",
            "1.a",
            "1.000000000000000A",
            "+1.0000000000000000",
        ] {
            assert_eq!(Token::parse(text), None, "{text}");
        }
        assert_eq!(Incarnation::parse("00000000000000ff"), Some(Incarnation(255)));
        assert_eq!(Incarnation::parse("ff"), None);
    }

    #[test]
    fn the_next_token_is_later_and_another() {
        let first = Token::first(5);
        let next = first.next(5);
        assert!(next.counter > first.counter);
        assert_ne!(next, first);
        assert_ne!(first.next(6), next);
    }
}

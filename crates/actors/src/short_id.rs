//! The short id of a session, by which operators name it. It is no secret: it does not reveal the id
//! that its client sends.

use std::fmt;
use std::ops::RangeInclusive;

use protocol::SessionId;
use sha2::{Digest, Sha256};

/// Fewest and most hexadecimal digits of a short id. With fewer, an operator could name the session of
/// another client by mistake.
const DIGITS: RangeInclusive<usize> = 8..=16;

/// The first 64 bits of the SHA-256 of a session's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShortId(pub(crate) u64);

impl ShortId {
    /// The short id of a session.
    pub fn of(session: &SessionId) -> Self {
        let digest = Sha256::digest(session.as_str().as_bytes());
        Self(digest.iter().take(8).fold(0, |id, byte| id << 8 | u64::from(*byte)))
    }

    /// The first eight bytes of the digest, as a number.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Reads a whole short id.
    pub fn parse(written: &str) -> Option<Self> {
        let range = range(written)?;
        (range.start() == range.end()).then(|| Self(*range.start()))
    }
}

impl fmt::Display for ShortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The session that an operator names.
#[derive(Clone, PartialEq, Eq)]
pub enum Target {
    /// By its id, as its client sends it.
    Id(SessionId),
    /// By its short id, or the beginning of that: the short ids that begin so.
    Short(RangeInclusive<u64>),
}

impl Target {
    /// Reads what an operator wrote; `None` if it names no session. No id has the form of a short id.
    pub fn parse(written: &str) -> Option<Self> {
        match range(written) {
            Some(range) => Some(Self::Short(range)),
            None => SessionId::parse(written).map(Self::Id),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(session) => ShortId::of(session).fmt(f),
            Self::Short(range) if range.start() == range.end() => ShortId(*range.start()).fmt(f),
            Self::Short(range) => write!(f, "{:016x} to {:016x}", range.start(), range.end()),
        }
    }
}

/// Shows no id.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn range(written: &str) -> Option<RangeInclusive<u64>> {
    let is_hexadecimal = written.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !DIGITS.contains(&written.len()) || !is_hexadecimal {
        return None;
    }
    let id = |fill: &str| {
        let missing = DIGITS.end() - written.len();
        u64::from_str_radix(&format!("{written}{}", fill.repeat(missing)), 16).ok()
    };
    Some(id("0")?..=id("f")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_named_by_its_id_by_its_short_id_or_by_the_beginning_of_that() {
        let session = SessionId::parse("7f0c1a52-5a36-4a5e-9c0e-0d1f8f1f2a3b-node1").unwrap();
        let short = ShortId::of(&session);
        assert_eq!(ShortId::parse(&short.to_string()), Some(short));
        assert_eq!(Target::parse(session.as_str()), Some(Target::Id(session.clone())));
        assert_eq!(Target::Id(session).to_string(), short.to_string());
        for digits in 8..=16 {
            let Some(Target::Short(range)) = Target::parse(&short.to_string()[..digits]) else {
                panic!("{digits}")
            };
            assert!(range.contains(&short.0));
            assert_eq!(range.end() - range.start(), 16_u64.pow(16 - digits as u32).wrapping_sub(1));
        }
        assert_eq!(Target::parse("0f0f0f0"), SessionId::parse("0f0f0f0").map(Target::Id));
        assert!(Target::parse("").is_none() && Target::parse("a b").is_none());
        assert_eq!(ShortId::parse("0f0f0f0f"), None);
    }
}

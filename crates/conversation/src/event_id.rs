//! Event ids: `<stream>.<owner_tag>-<number>`.
//!
//! The owner tag is the random part of the token under which the event was written, so
//! that no two owners ever give one id to two payloads.

use std::fmt;

/// The owner that wrote an event: 64 random bits, new with every owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerTag(pub u64);

impl OwnerTag {
    /// Reads an owner tag; `None` for any text that [`fmt::Display`] does not write.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let lower_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let canonical = text.len() == 16 && text.bytes().all(lower_hex);
        if canonical { u64::from_str_radix(text, 16).ok().map(Self) } else { None }
    }
}

impl fmt::Display for OwnerTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The id of one event of one stream of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId {
    /// The number of the stream's *opened* entry in the session's log.
    pub stream: u64,
    /// The owner that wrote the event.
    pub owner_tag: OwnerTag,
    /// The number of the event's own entry.
    pub number: u64,
}

impl EventId {
    /// Longest text that can be one: two 20-digit numbers, 16 digits and two separators.
    const LENGTH_MAX: usize = 58;

    /// Reads an id; `None` for any text that [`fmt::Display`] does not write.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > Self::LENGTH_MAX {
            return None;
        }
        let (stream, rest) = text.split_once('.')?;
        let (owner_tag, number) = rest.split_once('-')?;
        let (stream, number) = (decimal(stream)?, decimal(number)?);
        Some(Self { stream, owner_tag: OwnerTag::parse(owner_tag)?, number })
    }
}

/// A decimal number in its one canonical form.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    let canonical =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if canonical { text.parse().ok() } else { None }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}-{}", self.stream, self.owner_tag, self.number)
    }
}

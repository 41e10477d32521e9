//! The binary layout of records, log entries and leases in Redis.
//!
//! The fields that scripts read are at fixed offsets at the beginning, so that a script compares
//! bytes and parses nothing. All numbers are big-endian. A record:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | the layout: [`LAYOUT`], or [`LAYOUT_WITH_DIFFERENCES`] |
//! | 1 | status: `O`wned, `R`eleased, `E`nded |
//! | 2..18 | the owner's token: counter, random |
//! | 18..26 | the owner's node |
//! | 26..34 | version of the state |
//! | 34..38 | length of `initialize` |
//! | 38..42 | length of the state |
//! | 42 | number of former tokens |
//! | 43.. | former tokens, digest of the principal, tenant and revision (each after its length in 2
//! bytes), `initialize`, the state |
//!
//! A log entry is its number in 8 bytes, and the payload. A lease is `L`, the number of the
//! renewal in 8 bytes, the number of the renewal that found no lease in 8 bytes, the number of
//! links in 2 bytes, the linked incarnations, draining in 1 byte, load in 8 bytes, name and
//! address (each after its length in 2 bytes). A dead mark is `D` and the incarnation that wrote
//! it.
//!
//! A change of the layout needs another [`LAYOUT`]: nodes of two versions share one Redis during
//! an upgrade.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    Digest, FORMER_MAX, Incarnation, Lease, Owner, Presence, Record, RecordStatus, State,
    StateBytes, Token,
};

/// The layout of a record whose state is whole.
pub(super) const LAYOUT: u8 = 1;

/// The layout of a record whose state ends with differences. The version before this one reads no
/// differences. With this layout it takes the record for one of a newer version, and leaves it to a
/// node that reads it.
pub(super) const LAYOUT_WITH_DIFFERENCES: u8 = 2;

/// The layout of a record with this state.
pub(super) fn layout(state: &StateBytes) -> u8 {
    if state.has_differences() { LAYOUT_WITH_DIFFERENCES } else { LAYOUT }
}

pub(super) fn encode_token(token: Token) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&token.counter.to_be_bytes());
    bytes[8..].copy_from_slice(&token.random.to_be_bytes());
    bytes
}

pub(super) fn encode_node(node: Incarnation) -> [u8; 8] {
    node.0.to_be_bytes()
}

/// Encodes a record; `None` if a field is longer than its length prefix can express.
pub(super) fn encode_record(record: &Record) -> Option<Vec<u8>> {
    let former = &record.former[..record.former.len().min(FORMER_MAX)];
    let state = record.state.bytes.to_bytes();
    let length = 128 + 16 * former.len() + record.initialize.len() + state.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.push(layout(&record.state.bytes));
    bytes.push(match record.status {
        RecordStatus::Owned => b'O',
        RecordStatus::Released => b'R',
        RecordStatus::Ended => b'E',
    });
    bytes.extend(encode_token(record.owner.token));
    bytes.extend(encode_node(record.owner.node));
    bytes.extend(record.state.version.to_be_bytes());
    bytes.extend(u32::try_from(record.initialize.len()).ok()?.to_be_bytes());
    bytes.extend(u32::try_from(state.len()).ok()?.to_be_bytes());
    bytes.push(former.len() as u8);
    bytes.extend(former.iter().flat_map(|token| encode_token(*token)));
    bytes.extend(record.principal.0);
    put_text(&mut bytes, &record.tenant)?;
    put_text(&mut bytes, &record.revision)?;
    bytes.extend(&*record.initialize);
    bytes.extend(&*state);
    Some(bytes)
}

/// Decodes a record; `None` for bytes that [`encode_record`] does not write.
pub(super) fn decode_record(bytes: &[u8]) -> Option<Record> {
    let mut rest = Rest(bytes);
    let has_differences = match rest.byte()? {
        LAYOUT => false,
        LAYOUT_WITH_DIFFERENCES => true,
        _ => return None,
    };
    let status = match rest.byte()? {
        b'O' => RecordStatus::Owned,
        b'R' => RecordStatus::Released,
        b'E' => RecordStatus::Ended,
        _ => return None,
    };
    let owner = Owner { token: rest.token()?, node: Incarnation(rest.number()?) };
    let version = rest.number()?;
    let (initialize, state) = (rest.length()?, rest.length()?);
    let former = (0..rest.byte()?).map(|_| rest.token()).collect::<Option<_>>()?;
    let principal = Digest(*rest.array()?);
    let (tenant, revision) = (rest.text()?.into(), rest.text()?.to_owned().into());
    let initialize = rest.take(initialize)?.into();
    let bytes = StateBytes::read(rest.take(state)?.into(), has_differences);
    let state = State { version, bytes };
    let record = Record { owner, former, tenant, principal, revision, initialize, state, status };
    rest.0.is_empty().then_some(record)
}

/// Whether a newer version wrote the record, in its own layout.
pub(super) fn is_newer(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|layout| *layout > LAYOUT_WITH_DIFFERENCES)
}

/// Decodes the owner of a record, as scripts return it.
pub(super) fn decode_owner(bytes: &[u8]) -> Option<Owner> {
    let mut rest = Rest(bytes);
    Some(Owner { token: rest.token()?, node: Incarnation(rest.number()?) })
}

/// The bytes of a log entry before its payload.
pub(super) fn entry_head(number: u64) -> [u8; ENTRY_HEAD_BYTES] {
    number.to_be_bytes()
}

/// The length of [`entry_head`].
pub(super) const ENTRY_HEAD_BYTES: usize = 8;

/// Decodes a log entry.
pub(super) fn decode_entry(mut bytes: Vec<u8>) -> Option<(u64, Bytes)> {
    let number = Rest(&bytes).number()?;
    Some((number, Bytes::from(bytes.split_off(ENTRY_HEAD_BYTES))))
}

pub(super) fn encode_lease(lease: &Lease) -> Option<Vec<u8>> {
    let mut bytes = vec![b'L'];
    bytes.extend(lease.renewal.to_be_bytes());
    // The script stores the number of the renewal that found no lease in this place.
    bytes.extend(lease.acknowledged.to_be_bytes());
    bytes.extend(u16::try_from(lease.linked.len()).ok()?.to_be_bytes());
    bytes.extend(lease.linked.iter().flat_map(|node| encode_node(*node)));
    bytes.push(lease.draining.into());
    bytes.extend(lease.load.to_be_bytes());
    put_text(&mut bytes, &lease.name)?;
    put_text(&mut bytes, &lease.address)?;
    Some(bytes)
}

/// Decodes the value at an incarnation's key: its lease or its dead mark.
pub(super) fn decode_presence(incarnation: Incarnation, bytes: &[u8]) -> Option<Presence> {
    let mut rest = Rest(bytes);
    let presence = match rest.byte()? {
        b'D' => Presence::Dead { by: Incarnation(rest.number()?) },
        b'L' => {
            let renewal = rest.number()?;
            let _begun = rest.number()?;
            let links = u16::from_be_bytes(*rest.array()?);
            let linked =
                (0..links).map(|_| rest.number().map(Incarnation)).collect::<Option<_>>()?;
            let draining = rest.byte()? != 0;
            let load = rest.number()?;
            let (name, address): (Arc<str>, Arc<str>) = (rest.text()?.into(), rest.text()?.into());
            // The acknowledged number is not stored: other nodes do not need it.
            let acknowledged = 0;
            Presence::Live(Lease {
                incarnation,
                renewal,
                acknowledged,
                name,
                address,
                draining,
                load,
                linked,
            })
        }
        _ => return None,
    };
    rest.0.is_empty().then_some(presence)
}

pub(super) fn put_text(bytes: &mut Vec<u8>, text: &str) -> Option<()> {
    bytes.extend(u16::try_from(text.len()).ok()?.to_be_bytes());
    bytes.extend(text.as_bytes());
    Some(())
}

/// The bytes that are not decoded yet.
pub(super) struct Rest<'b>(pub(super) &'b [u8]);

impl<'b> Rest<'b> {
    fn take(&mut self, length: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<&'b [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| *byte)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        self.array().map(|bytes| u64::from_be_bytes(*bytes))
    }

    fn length(&mut self) -> Option<usize> {
        self.array().map(|bytes| u32::from_be_bytes(*bytes) as usize)
    }

    fn token(&mut self) -> Option<Token> {
        Some(Token { counter: self.number()?, random: self.number()? })
    }

    pub(super) fn text(&mut self) -> Option<&'b str> {
        let length = u16::from_be_bytes(*self.array()?);
        std::str::from_utf8(self.take(length.into())?).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record() -> Record {
        let token = Token { counter: 3, random: u64::MAX };
        Record {
            owner: Owner { token, node: Incarnation(9) },
            former: vec![Token { counter: 2, random: 7 }, Token::first(1)],
            tenant: "acme".into(),
            principal: Digest([7; 32]),
            revision: "2025-11-25".into(),
            initialize: (*b"{}").into(),
            state: State { version: 1 << 40, bytes: (*b"\x00\xFF").into() },
            status: RecordStatus::Released,
        }
    }

    fn lease() -> Lease {
        Lease {
            incarnation: Incarnation(1),
            renewal: 7,
            acknowledged: 0,
            name: "a".into(),
            address: "10.0.0.4:7070".into(),
            draining: true,
            load: 70_000,
            linked: vec![Incarnation(2), Incarnation(u64::MAX)],
        }
    }

    #[test]
    fn a_record_and_a_lease_decode_to_what_was_encoded() {
        let mut record = record();
        let bytes = encode_record(&record).expect("written");
        assert_eq!(decode_record(&bytes), Some(record.clone()));
        record.state.bytes.push((*b"more").into());
        let extended = encode_record(&record).expect("written");
        assert_eq!(decode_record(&extended), Some(record.clone()));
        assert_eq!((bytes[0], extended[0]), (LAYOUT, LAYOUT_WITH_DIFFERENCES));
        assert_eq!(decode_owner(&bytes[2..26]), Some(record.owner));
        let bytes = encode_lease(&lease()).expect("written");
        assert_eq!(decode_presence(Incarnation(1), &bytes), Some(Presence::Live(lease())));
    }

    #[test]
    fn truncated_bytes_and_other_layouts_are_not_decoded() {
        let bytes = encode_record(&record()).expect("written");
        for end in 0..bytes.len() {
            assert_eq!(decode_record(&bytes[..end]), None);
        }
        assert_eq!(decode_record(&[&bytes[..], b"x"].concat()), None);
        assert_eq!(decode_record(&[&[LAYOUT_WITH_DIFFERENCES + 1], &bytes[1..]].concat()), None);
        let bytes = encode_lease(&lease()).expect("written");
        for end in 0..bytes.len() {
            assert_eq!(decode_presence(Incarnation(1), &bytes[..end]), None);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            decode_record(&bytes);
            decode_presence(Incarnation(1), &bytes);
            decode_owner(&bytes);
            decode_entry(bytes);
        }
    }
}

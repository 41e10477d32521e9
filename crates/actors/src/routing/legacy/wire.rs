//! The parts that calls and replies are written in: single bytes, numbers of as few bytes
//! as they need, and lengths followed by raw bytes.
//!
//! Reading gives `None` for what was not written here. It never panics, copies no
//! payload, and allocates nothing that the bytes it reads do not pay for.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use protocol::{ErrorCode, Rejection, RequestId};

use super::VERSION;

/// Every code, in the order in which they are numbered here.
const CODES: [ErrorCode; 8] = [
    ErrorCode::ParseError,
    ErrorCode::InvalidRequest,
    ErrorCode::MethodNotFound,
    ErrorCode::InvalidParams,
    ErrorCode::InternalError,
    ErrorCode::HeaderMismatch,
    ErrorCode::SessionNotFound,
    ErrorCode::Refused,
];

/// A call or reply that is being written.
pub(super) struct Writer(BytesMut);

impl Writer {
    /// One that begins with the version, and has room for so much more.
    pub(super) fn new(capacity: usize) -> Self {
        let mut bytes = BytesMut::with_capacity(capacity.saturating_add(1));
        bytes.put_u8(VERSION);
        Self(bytes)
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.0.put_u8(byte);
    }

    /// Seven bits a byte, the lowest first; all but the last have their eighth bit set.
    pub(super) fn number(&mut self, mut number: u64) {
        while number > 0x7F {
            self.0.put_u8(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.put_u8(number as u8);
    }

    /// A number that uses all its bits anyway.
    pub(super) fn word(&mut self, word: u64) {
        self.0.put_u64(word);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.put_slice(bytes);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Whether there is one, and if so, it.
    pub(super) fn perhaps<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.byte(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(super) fn rejection(&mut self, rejection: &Rejection) {
        let code = CODES.iter().position(|code| *code == rejection.code).unwrap_or(CODES.len());
        self.byte(code as u8);
        self.text(&rejection.message);
        self.perhaps(rejection.id.as_ref(), |writer, id| writer.text(&id.to_json()));
    }

    pub(super) fn finish(self) -> Bytes {
        self.0.freeze()
    }
}

/// A call or reply that is being read.
pub(super) struct Reader(Bytes);

impl Reader {
    /// What follows the version, if it is ours.
    pub(super) fn new(mut bytes: Bytes) -> Option<Self> {
        (bytes.try_get_u8().ok()? == VERSION).then_some(Self(bytes))
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.0.try_get_u8().ok()
    }

    pub(super) fn truth(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            // The last byte has room for one bit only.
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn word(&mut self) -> Option<u64> {
        self.0.try_get_u64().ok()
    }

    /// A slice of what was received.
    pub(super) fn bytes(&mut self) -> Option<Bytes> {
        let length = usize::try_from(self.number()?).ok()?;
        (length <= self.0.len()).then(|| self.0.split_to(length))
    }

    /// A short text.
    pub(super) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.into()).ok()
    }

    pub(super) fn perhaps<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        if self.truth()? { read(self).map(Some) } else { Some(None) }
    }

    /// As many as are announced. Each takes at least a byte, so no announcement can ask for
    /// more room than was received.
    pub(super) fn several<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = usize::try_from(self.number()?).ok().filter(|count| *count <= self.0.len())?;
        (0..count).map(|_| read(self)).collect()
    }

    pub(super) fn rejection(&mut self) -> Option<Rejection> {
        let code = *CODES.get(usize::from(self.byte()?))?;
        let message = self.text()?;
        let id = self.perhaps(|reader| RequestId::from_json(&reader.text()?))?;
        Some(Rejection::new(code, message).of(id))
    }

    /// All that is left.
    pub(super) fn rest(self) -> Bytes {
        self.0
    }

    /// `value`, where nothing is left.
    pub(super) fn finish<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_small_ones_are_short() {
        for (number, length) in [(0, 2), (127, 2), (128, 3), (u64::MAX, 11)] {
            let mut writer = Writer::new(0);
            writer.number(number);
            let bytes = writer.finish();
            assert_eq!(bytes.len(), length);
            let mut reader = Reader::new(bytes).unwrap();
            assert_eq!(reader.number(), Some(number));
            assert!(reader.finish(()).is_some());
        }
    }

    #[test]
    fn a_number_with_too_many_bits_is_none() {
        for last in [0x02, 0xFF] {
            let bytes = [[VERSION].as_slice(), &[0xFF; 9], &[last]].concat();
            assert_eq!(Reader::new(bytes.into()).unwrap().number(), None);
        }
    }

    #[test]
    fn a_length_beyond_the_end_is_none() {
        let mut reader = Reader::new(Bytes::from_static(&[VERSION, 3, b'a', b'b'])).unwrap();
        assert_eq!(reader.bytes(), None);
        let mut reader = Reader::new(Bytes::from_static(&[VERSION, 3, b'a', b'b'])).unwrap();
        assert_eq!(reader.several(Reader::byte), None);
    }

    #[test]
    fn another_version_is_not_read() {
        assert!(Reader::new(Bytes::from_static(&[VERSION + 1, 0])).is_none());
        assert!(Reader::new(Bytes::new()).is_none());
    }
}

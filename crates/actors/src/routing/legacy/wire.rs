//! The primitives of calls and replies: single bytes, variable-length numbers, and raw bytes after
//! their length.
//!
//! Reading returns `None` for invalid bytes. It never panics, copies no payload, and allocates no
//! more than the received bytes justify.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use protocol::{ErrorCode, Rejection, RequestId};

use super::VERSION;

/// Every code, at the position that is its number.
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

/// A call or reply that is being encoded.
pub(super) struct Writer(BytesMut);

impl Writer {
    /// Creates a writer with the version byte and this capacity.
    pub(super) fn new(capacity: usize) -> Self {
        let mut bytes = BytesMut::with_capacity(capacity.saturating_add(1));
        bytes.put_u8(VERSION);
        Self(bytes)
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.0.put_u8(byte);
    }

    /// Writes seven bits a byte, the lowest first; all but the last byte have the eighth bit set.
    pub(super) fn number(&mut self, mut number: u64) {
        while number > 0x7F {
            self.0.put_u8(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.put_u8(number as u8);
    }

    /// Writes a number of fixed size.
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

    /// Writes whether the value is present, and the value.
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

/// A call or reply that is being decoded.
pub(super) struct Reader(Bytes);

impl Reader {
    /// Creates a reader of the bytes after the version; `None` for another version.
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
            // The last byte may hold one bit only.
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

    /// A slice of the received bytes.
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

    /// Reads the announced number of items. Each takes at least a byte, so the allocation is
    /// bounded by the received bytes.
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

    /// The remaining bytes.
    pub(super) fn rest(self) -> Bytes {
        self.0
    }

    /// Returns `value` if no bytes remain.
    pub(super) fn finish<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_written_and_small_ones_are_short() {
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

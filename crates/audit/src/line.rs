//! A record as a line of JSON.
//!
//! Texts can come from clients: none ends a line, changes the direction of reading, or hides another, and
//! each has a greatest length.

use std::borrow::Cow;

use crate::entry::{Entry, FIELD_BYTES_MAX, FieldValue, Kind, Origin, OriginSource, RequestName};

/// The greatest length of a name of a tool, a prompt, a resource or a method, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The greatest length of an issuer or a subject.
const PRINCIPAL_BYTES_MAX: usize = 512;

/// The greatest length of a request's id.
const REQUEST_BYTES_MAX: usize = 64;

/// Where a record is made: the node, and the tenant unless it is about the node. It follows the id of the
/// call.
pub(crate) fn place(node: &str, tenant: Option<&str>) -> Box<[u8]> {
    let mut text = Vec::new();
    let mut line = Line { out: &mut text };
    line.text(",\"node\":", Some(node), NAME_BYTES_MAX);
    line.text(",\"tenant\":", tenant, NAME_BYTES_MAX);
    text.into()
}

/// The client, the session and the endpoint. They follow the place.
pub(crate) fn origin(origin: &Origin<'_>) -> Box<[u8]> {
    let mut text = Vec::new();
    Line { out: &mut text }.origin(origin);
    text.into()
}

/// Appends what follows the time: all that is known, and the end of the line. `known_origin` is the text of the origin,
/// if that was made before.
pub(crate) fn write(
    out: &mut Vec<u8>,
    kind: Kind,
    place: &[u8],
    known_origin: Option<&[u8]>,
    entry: &Entry<'_>,
) {
    let mut line = Line { out };
    line.kind(kind);
    if let Some(call) = &entry.call {
        line.raw(b",\"call\":\"");
        line.raw(&call.0);
        line.raw(b"\"");
    }
    line.raw(place);
    match (known_origin, &entry.origin) {
        (Some(known), _) => line.raw(known),
        (None, OriginSource::Elsewhere) => {}
        (None, OriginSource::Parts(origin)) => line.origin(origin),
        (None, OriginSource::Session(origin)) => line.origin(&origin.parts()),
    }
    match entry.request {
        Some(RequestName::Number(number)) => {
            line.raw(b",\"request\":\"");
            line.decimal(number);
            line.raw(b"\"");
        }
        Some(RequestName::Text(text)) => line.member(",\"request\":", text, REQUEST_BYTES_MAX),
        None => {}
    }
    line.text(",\"method\":", entry.method, NAME_BYTES_MAX);
    if let Some((kind, name)) = entry.about {
        line.raw(b",\"");
        line.raw(kind.as_bytes());
        line.raw(b"\":");
        line.quoted(name, NAME_BYTES_MAX);
    }
    if entry.is_ambiguous {
        line.ambiguous();
    }
    if !entry.fields.is_empty() {
        line.fields(entry.fields);
    }
    line.rare_text(",\"action\":", entry.action, NAME_BYTES_MAX);
    line.rare_text(",\"by\":", entry.by, PRINCIPAL_BYTES_MAX);
    line.rare_text(",\"target\":", entry.target, NAME_BYTES_MAX);
    line.text(",\"outcome\":", entry.outcome, NAME_BYTES_MAX);
    line.rare_text(",\"reason\":", entry.reason, NAME_BYTES_MAX);
    line.number(b",\"status\":", entry.status.map(u64::from));
    if let Some(code) = entry.code {
        line.rare_number(b",\"code\":", code);
    }
    if let Some(duration) = entry.duration {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        line.raw(b",\"ms\":");
        line.decimal(micros / 1_000);
        let rest = micros % 1_000;
        let [d1, d2, d3] = [rest / 100, rest / 10 % 10, rest % 10].map(|digit| b'0' + digit as u8);
        line.raw(&[b'.', d1, d2, d3]);
    }
    line.number(b",\"bytes_in\":", entry.bytes_in);
    line.number(b",\"bytes_out\":", entry.bytes_out);
    if let Some(count) = entry.count {
        line.rare_number(b",\"count\":", count);
    }
    line.rare_text(",\"trace\":", entry.trace, REQUEST_BYTES_MAX);
    line.raw(b"}\n");
}

/// A line that has begun with the time.
struct Line<'a> {
    out: &'a mut Vec<u8>,
}

impl Line<'_> {
    /// Inlined: most texts have a length that the compiler knows.
    #[inline(always)]
    fn raw(&mut self, text: &[u8]) {
        self.out.extend_from_slice(text);
    }

    /// The member of each kind by itself, so that the compiler knows its length.
    fn kind(&mut self, kind: Kind) {
        match kind {
            Kind::Begin => self.raw(b",\"kind\":\"begin\""),
            Kind::End => self.raw(b",\"kind\":\"end\""),
            Kind::Message => self.raw(b",\"kind\":\"message\""),
            Kind::Refused => self.raw(b",\"kind\":\"refused\""),
            Kind::SignInFailed => self.raw(b",\"kind\":\"sign_in_failed\""),
            Kind::Revoked => self.raw(b",\"kind\":\"revoked\""),
            Kind::Admin => self.raw(b",\"kind\":\"admin\""),
            Kind::LeftOut => self.raw(b",\"kind\":\"left_out\""),
            Kind::Definition => self.raw(b",\"kind\":\"definition\""),
        }
    }

    /// `key` with the comma before and the colon behind.
    #[inline(always)]
    fn text(&mut self, key: &'static str, text: Option<&str>, bytes_max: usize) {
        let Some(text) = text else { return };
        self.raw(key.as_bytes());
        self.quoted(text, bytes_max);
    }

    /// The same for a text that few records have.
    #[inline(always)]
    fn rare_text(&mut self, key: &'static str, text: Option<&str>, bytes_max: usize) {
        if let Some(text) = text {
            self.member(key, text, bytes_max);
        }
    }

    /// Not inlined, like the members that few records have: the record of a call is made between code of other kinds,
    /// so each line of memory with code that is jumped over is one more to wait for.
    #[cold]
    fn member(&mut self, key: &'static str, text: &str, bytes_max: usize) {
        self.raw(key.as_bytes());
        self.quoted(text, bytes_max);
    }

    #[cold]
    fn ambiguous(&mut self) {
        self.raw(b",\"ambiguous\":true");
    }

    #[cold]
    fn rare_number(&mut self, key: &'static [u8], number: impl itoa::Integer) {
        self.raw(key);
        self.decimal(number);
    }

    #[cold]
    fn origin(&mut self, origin: &Origin<'_>) {
        self.text(",\"principal\":", origin.principal, NAME_BYTES_MAX);
        self.text(",\"issuer\":", origin.issuer, PRINCIPAL_BYTES_MAX);
        self.text(",\"subject\":", origin.subject, PRINCIPAL_BYTES_MAX);
        if let Some(session) = origin.session {
            self.raw(b",\"session\":\"");
            self.raw(&hex_digits(session.0));
            self.raw(b"\"");
        }
        self.text(",\"endpoint\":", origin.endpoint, NAME_BYTES_MAX);
    }

    fn quoted(&mut self, text: &str, bytes_max: usize) {
        let cut = &text[..text.floor_char_boundary(bytes_max)];
        self.out.push(b'"');
        match is_plain(cut.as_bytes()) {
            true => self.out.extend_from_slice(cut.as_bytes()),
            false => cut.chars().for_each(|char| self.char(char)),
        }
        if cut.len() < text.len() {
            self.out.extend_from_slice("…".as_bytes());
        }
        self.out.push(b'"');
    }

    fn char(&mut self, char: char) {
        match char {
            '"' | '\\' => self.out.extend_from_slice(&[b'\\', char as u8]),
            ' '..='~' => self.out.push(char as u8),
            _ if is_visible(char) => {
                self.out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
            }
            _ => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    self.out.extend_from_slice(b"\\u");
                    let digits = [12, 8, 4, 0].map(|shift| hex_digit(*unit >> shift));
                    self.out.extend_from_slice(&digits);
                }
            }
        }
    }

    #[inline(always)]
    fn number(&mut self, key: &'static [u8], number: Option<u64>) {
        if let Some(number) = number {
            self.raw(key);
            self.decimal(number);
        }
    }

    fn decimal(&mut self, number: impl itoa::Integer) {
        self.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    #[cold]
    fn fields(&mut self, fields: &[(&str, FieldValue<'_>)]) {
        self.raw(b",\"fields\":{");
        for (index, (path, value)) in fields.iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            self.quoted(path, NAME_BYTES_MAX);
            self.out.push(b':');
            match value {
                // JSON text of a number can have any length.
                FieldValue::Plain(text) if text.len() <= REQUEST_BYTES_MAX => {
                    self.out.extend_from_slice(text.as_bytes());
                }
                FieldValue::Plain(text) => self.quoted(text, FIELD_BYTES_MAX),
                FieldValue::Text(text) => self.quoted(text, FIELD_BYTES_MAX),
            }
        }
        self.out.push(b'}');
    }
}

/// Whether a text is written as it is: visible ASCII and blanks, without a quote or a backslash.
fn is_plain(text: &[u8]) -> bool {
    let (words, rest) = text.as_chunks();
    // Without an early end: most texts are short, and plain.
    let words =
        words.iter().fold(true, |plain, word| plain & is_plain_word(u64::from_le_bytes(*word)));
    words & is_plain_word(last_word(text, rest))
}

/// The last bytes of a text, with bytes before them or blanks.
fn last_word(text: &[u8], rest: &[u8]) -> u64 {
    if let Some(last) = text.last_chunk() {
        return u64::from_le_bytes(*last);
    }
    let half = |half: &[u8; 4]| u64::from(u32::from_le_bytes(*half));
    match (rest.first_chunk(), rest.last_chunk()) {
        (Some(first), Some(last)) => half(first) << 32 | half(last),
        _ => rest
            .iter()
            .fold(u64::from_le_bytes([b' '; 8]), |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// The same of eight bytes at once.
fn is_plain_word(word: u64) -> bool {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    // The highest bit of some byte if one is 0, and of none otherwise.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word;
    let is = |byte: u8| zeros(word ^ (ONES * u64::from(byte)));
    // The highest bit of each byte beyond ASCII, of one below a blank, and of DEL.
    let is_invisible = word | word.wrapping_sub(ONES * u64::from(b' ')) | is(0x7f);
    (is_invisible | is(b'"') | is(b'\\')) & (ONES << 7) == 0
}

fn hex_digit(number: u16) -> u8 {
    b"0123456789abcdef"[usize::from(number & 15)]
}

/// The 16 hexadecimal digits of a number. All at once: first each four bits become a byte, then each byte its digit.
pub(crate) fn hex_digits(number: u64) -> [u8; 16] {
    let spread = |half: u64| {
        let half = (half | (half << 16)) & 0x0000_ffff_0000_ffff;
        let half = (half | (half << 8)) & 0x00ff_00ff_00ff_00ff;
        let half = (half | (half << 4)) & 0x0f0f_0f0f_0f0f_0f0f;
        // 1 in each byte that is above 9.
        let letters = ((half + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
        let to_letter = u64::from(b'a' - b'9' - 1);
        half + 0x3030_3030_3030_3030 + letters * to_letter
    };
    let mut digits = [0; 16];
    digits[..8].copy_from_slice(&spread(number >> 32).to_be_bytes());
    digits[8..].copy_from_slice(&spread(number & 0xffff_ffff).to_be_bytes());
    digits
}

/// Letters and digits of any language. Everything else beyond ASCII is escaped: controls, marks that
/// change the direction of reading, and characters without a width.
fn is_visible(char: char) -> bool {
    char.is_alphanumeric()
}

/// The JSON text of a value as a field.
impl<'a> FieldValue<'a> {
    /// A list or an object is written as a text.
    pub fn of_json(json: &'a str, text: Option<Cow<'a, str>>) -> Self {
        match (text, json.as_bytes().first()) {
            (Some(text), _) => Self::Text(text),
            (None, Some(b'{' | b'[' | b'"')) => Self::Text(Cow::Borrowed(json)),
            (None, _) => Self::Plain(json),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use crate::{CallId, SessionDigest, SessionOrigin};

    fn line(kind: Kind, entry: &Entry<'_>) -> String {
        let mut out = b"{\"time\":\"t\"".to_vec();
        write(&mut out, kind, &place("n1", Some("acme")), None, entry);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_begin_and_an_end_have_all_that_is_known() {
        let begin = Entry {
            call: Some(CallId::new(0, 0xab)),
            origin: Origin {
                principal: Some("subject"),
                issuer: Some("https://i.example"),
                subject: Some("ada"),
                session: Some(SessionDigest(1)),
                endpoint: Some("mcp"),
            }
            .into(),
            request: Some(RequestName::Number(7)),
            method: Some("tools/call"),
            about: Some(("tool", "echo")),
            fields: &[
                ("params.arguments.path", FieldValue::Text("/etc".into())),
                ("params.arguments.n", FieldValue::Plain("-1.5")),
            ],
            bytes_in: Some(12),
            trace: Some("0af7"),
            ..Entry::default()
        };
        assert_eq!(
            line(Kind::Begin, &begin),
            "{\"time\":\"t\",\"kind\":\"begin\",\"call\":\"000000000000000000000000000000ab\",\
             \"node\":\"n1\",\"tenant\":\"acme\",\"principal\":\"subject\",\"issuer\":\"https://i.example\",\
             \"subject\":\"ada\",\"session\":\"0000000000000001\",\"endpoint\":\"mcp\",\
             \"request\":\"7\",\"method\":\"tools/call\",\"tool\":\"echo\",\
             \"fields\":{\"params.arguments.path\":\"/etc\",\"params.arguments.n\":-1.5},\
             \"bytes_in\":12,\"trace\":\"0af7\"}\n"
        );
        let end = Entry {
            call: Some(CallId::new(0, 0xab)),
            outcome: Some("error"),
            status: Some(200),
            code: Some(-32602),
            duration: Some(Duration::from_micros(12_034)),
            bytes_out: Some(0),
            ..Entry::default()
        };
        assert_eq!(
            line(Kind::End, &end),
            "{\"time\":\"t\",\"kind\":\"end\",\"call\":\"000000000000000000000000000000ab\",\
             \"node\":\"n1\",\"tenant\":\"acme\",\"outcome\":\"error\",\"status\":200,\
             \"code\":-32602,\"ms\":12.034,\"bytes_out\":0}\n"
        );
    }

    #[test]
    fn no_text_of_a_client_ends_a_line_or_hides_another() {
        let hostile = "a\"\\\n\r\u{0}\u{1b}[2J\u{7f}\u{85}\u{202e}\u{2028}\u{feff}\u{e0001}ä字 \",\"kind\":\"x";
        let fields = [("p", FieldValue::Text(hostile.into()))];
        let entry = Entry {
            origin: Origin { subject: Some(hostile), ..Origin::default() }.into(),
            request: Some(RequestName::Text(hostile)),
            about: Some(("tool", hostile)),
            fields: &fields,
            ..Entry::default()
        };
        let line = line(Kind::Begin, &entry);
        assert_eq!(line.matches('\n').count(), 1, "{line:?}");
        assert!(!line.trim_end().chars().any(|c| c.is_control() || c == '\u{202e}'), "{line:?}");
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["kind"], "begin");
        for value in [&read["subject"], &read["request"], &read["tool"], &read["fields"]["p"]] {
            assert_eq!(value, hostile);
        }
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let long = "ä".repeat(4_000);
        let fields = [("p", FieldValue::Text(long.as_str().into()))];
        let about = Some(("resource", long.as_str()));
        let entry = Entry { about, fields: &fields, ..Entry::default() };
        let read: Value = serde_json::from_str(&line(Kind::Begin, &entry)).unwrap();
        for value in [&read["resource"], &read["fields"]["p"]] {
            let text = value.as_str().unwrap();
            assert!(text.ends_with("ä…") && text.len() <= 260, "{text}");
        }
    }

    #[test]
    fn a_text_is_plain_if_each_byte_is() {
        for before in 0..20 {
            for byte in 0..=u8::MAX {
                let text = [&[b' '; 20][..before], &[byte], &b"~aZ09 "[..before % 7]].concat();
                let expected = matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
                assert_eq!(is_plain(&text), expected, "{text:?}");
            }
        }
        assert!(is_plain(b""));
    }

    #[test]
    fn a_number_has_its_hexadecimal_digits() {
        for number in [0, 1, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, u64::MAX, 0x9a] {
            let digits = hex_digits(number);
            assert_eq!(str::from_utf8(&digits), Ok(&*format!("{number:016x}")));
        }
    }

    #[test]
    fn the_origin_of_a_session_is_written_as_its_parts_are() {
        let session = SessionOrigin {
            session: "0123456789abcdef",
            client: "a\"b",
            endpoint: "mcp",
            of_client: |name| Origin { subject: Some(name), ..Origin::default() },
        };
        let request = Some(RequestName::Number(-7));
        let entry = |origin| Entry { origin, request, ..Entry::default() };
        let parts = entry(OriginSource::Parts(session.parts()));
        let session = entry(OriginSource::Session(session));
        assert_eq!(line(Kind::Begin, &parts), line(Kind::Begin, &session));
        let line = line(Kind::Begin, &session);
        assert!(line.contains("\"subject\":\"a\\\"b\",\"session\":\"9f9f5111f7b27a78\""), "{line}");
        assert!(line.contains("\"request\":\"-7\""), "{line}");
        assert!(!format!("{session:?}").contains("0123456789abcdef"));
    }

    #[test]
    fn json_that_is_no_scalar_is_a_text() {
        let value = |json| FieldValue::of_json(json, None);
        assert_eq!(value("true"), FieldValue::Plain("true"));
        assert_eq!(value("{\n}"), FieldValue::Text("{\n}".into()));
        assert_eq!(value("[1]"), FieldValue::Text("[1]".into()));
    }
}

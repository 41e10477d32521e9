//! A record as a line of JSON.
//!
//! Texts can come from clients: none ends a line, changes the direction of reading, or hides another, and
//! each has a greatest length.

use std::borrow::Cow;

use crate::entry::{Entry, FIELD_BYTES_MAX, FieldValue, Kind};

/// The greatest length of a name of a tool, a prompt, a resource or a method, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The greatest length of an issuer or a subject.
const PRINCIPAL_BYTES_MAX: usize = 512;

/// The greatest length of a request's id.
const REQUEST_BYTES_MAX: usize = 64;

/// Appends what follows the time: all that is known, and the end of the line.
pub(crate) fn write(
    out: &mut Vec<u8>,
    kind: Kind,
    node: &str,
    tenant: Option<&str>,
    entry: &Entry<'_>,
) {
    let mut line = Line { out };
    line.plain("kind", kind.as_str());
    if let Some(call) = entry.call {
        line.key("call");
        line.out.push(b'"');
        line.hex((call.0 >> 64) as u64);
        line.hex(call.0 as u64);
        line.out.push(b'"');
    }
    line.text("node", Some(node), NAME_BYTES_MAX);
    line.text("tenant", tenant, NAME_BYTES_MAX);
    line.text("principal", entry.principal, NAME_BYTES_MAX);
    line.text("issuer", entry.issuer, PRINCIPAL_BYTES_MAX);
    line.text("subject", entry.subject, PRINCIPAL_BYTES_MAX);
    if let Some(session) = entry.session {
        line.key("session");
        line.out.push(b'"');
        line.hex(session.0);
        line.out.push(b'"');
    }
    line.text("endpoint", entry.endpoint, NAME_BYTES_MAX);
    line.text("request", entry.request, REQUEST_BYTES_MAX);
    line.text("method", entry.method, NAME_BYTES_MAX);
    if let Some((kind, name)) = entry.about {
        line.text(kind, Some(name), NAME_BYTES_MAX);
    }
    if entry.is_ambiguous {
        line.key("ambiguous");
        line.out.extend_from_slice(b"true");
    }
    line.fields(entry.fields);
    line.text("action", entry.action, NAME_BYTES_MAX);
    line.text("by", entry.by, PRINCIPAL_BYTES_MAX);
    line.text("target", entry.target, NAME_BYTES_MAX);
    line.text("outcome", entry.outcome, NAME_BYTES_MAX);
    line.text("reason", entry.reason, NAME_BYTES_MAX);
    line.number("status", entry.status.map(u64::from));
    if let Some(code) = entry.code {
        line.key("code");
        if code < 0 {
            line.out.push(b'-');
        }
        line.decimal(u64::from(code.unsigned_abs()));
    }
    if let Some(duration) = entry.duration {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        line.key("ms");
        line.decimal(micros / 1_000);
        let rest = micros % 1_000;
        let digits = [rest / 100, rest / 10 % 10, rest % 10].map(|digit| b'0' + digit as u8);
        line.out.push(b'.');
        line.out.extend_from_slice(&digits);
    }
    line.number("bytes_in", entry.bytes_in);
    line.number("bytes_out", entry.bytes_out);
    line.number("count", entry.count);
    line.text("trace", entry.trace, REQUEST_BYTES_MAX);
    line.out.extend_from_slice(b"}\n");
}

/// A line that has begun with the time.
struct Line<'a> {
    out: &'a mut Vec<u8>,
}

impl Line<'_> {
    fn key(&mut self, key: &str) {
        self.out.extend_from_slice(b",\"");
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    /// A text of the program, which needs no escapes.
    fn plain(&mut self, key: &str, text: &str) {
        self.key(key);
        self.out.push(b'"');
        self.out.extend_from_slice(text.as_bytes());
        self.out.push(b'"');
    }

    fn text(&mut self, key: &str, text: Option<&str>, bytes_max: usize) {
        let Some(text) = text else { return };
        self.key(key);
        self.quoted(text, bytes_max);
    }

    fn quoted(&mut self, text: &str, bytes_max: usize) {
        let cut = &text[..text.floor_char_boundary(bytes_max)];
        self.out.push(b'"');
        // Without an early end, so that the compiler compares many bytes at once.
        let needs_escape = cut.bytes().fold(false, |needs, byte| {
            needs | !matches!(byte, b' '..=b'~') | (byte == b'"') | (byte == b'\\')
        });
        if !needs_escape {
            self.out.extend_from_slice(cut.as_bytes());
        } else {
            cut.chars().for_each(|char| self.char(char));
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

    fn hex(&mut self, number: u64) {
        let mut digits = [0; 16];
        for (at, digit) in digits.iter_mut().enumerate() {
            *digit = hex_digit((number >> (60 - 4 * at)) as u16);
        }
        self.out.extend_from_slice(&digits);
    }

    fn number(&mut self, key: &str, number: Option<u64>) {
        if let Some(number) = number {
            self.key(key);
            self.decimal(number);
        }
    }

    fn decimal(&mut self, mut number: u64) {
        let mut digits = [b'0'; 20];
        let mut at = digits.len() - 1;
        loop {
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
            at -= 1;
        }
        self.out.extend_from_slice(&digits[at..]);
    }

    fn fields(&mut self, fields: &[(&str, FieldValue<'_>)]) {
        if fields.is_empty() {
            return;
        }
        self.key("fields");
        self.out.push(b'{');
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

fn hex_digit(number: u16) -> u8 {
    b"0123456789abcdef"[usize::from(number & 15)]
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
    use crate::{CallId, SessionDigest};

    fn line(kind: Kind, entry: &Entry<'_>) -> String {
        let mut out = b"{\"time\":\"t\"".to_vec();
        write(&mut out, kind, "n1", Some("acme"), entry);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_begin_and_an_end_have_all_that_is_known() {
        let begin = Entry {
            call: Some(CallId(0xab)),
            principal: Some("subject"),
            issuer: Some("https://i.example"),
            subject: Some("ada"),
            session: Some(SessionDigest(1)),
            endpoint: Some("mcp"),
            request: Some("7"),
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
            call: Some(CallId(0xab)),
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
            subject: Some(hostile),
            request: Some(hostile),
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
    fn json_that_is_no_scalar_is_a_text() {
        let value = |json| FieldValue::of_json(json, None);
        assert_eq!(value("true"), FieldValue::Plain("true"));
        assert_eq!(value("{\n}"), FieldValue::Text("{\n}".into()));
        assert_eq!(value("[1]"), FieldValue::Text("[1]".into()));
    }
}

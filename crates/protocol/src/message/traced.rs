//! The trace that a request belongs to, as W3C Trace Context has it and SEP-414 puts it into
//! `params._meta`.
//!
//! Text of a client is bounded and checked before anything uses it. A text that is not exactly as the
//! specification has it counts as none.

use std::borrow::Cow;
use std::fmt;

use memchr::memmem::Finder;

use super::{Notification, Request, Shift, Span, splice};
use crate::raw::{Needle, Object, may_hold, object, pick, quoted, span_in};

const TRACE_PARENT: &str = "traceparent";
const TRACE_STATE: &str = "tracestate";

/// Longest `tracestate` that is read; the specification has every reader accept as many bytes.
const STATE_BYTES_MAX: usize = 512;

/// Most members of a `tracestate`.
const STATE_MEMBERS_MAX: usize = 32;

/// Longest `traceparent` that is read. One of version 00 has 55 bytes; a later one may be longer.
const PARENT_BYTES_MAX: usize = 256;

/// A `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The id of the trace, which is not 0.
    pub trace: u128,
    /// The id of the span, which is not 0.
    pub span: u64,
    /// Whether its sender records the trace.
    pub is_sampled: bool,
}

/// The position of a request in a trace that this cluster records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The id of the trace.
    pub trace: u128,
    /// The span in which the request is now.
    pub span: u64,
    /// The span of the node with the client's connection. It is still there after the request's owner
    /// was lost, with the owner's span.
    pub origin: u64,
}

impl TraceParent {
    /// Reads a `traceparent`; `None` for a malformed one (W3C Trace Context, section 3.2.2).
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() > PARENT_BYTES_MAX {
            return None;
        }
        let fields = bytes.get(..55)?;
        if [2, 35, 52].iter().any(|at| fields[*at] != b'-') {
            return None;
        }
        let version = hexadecimal(&fields[..2])?;
        match (version, bytes.get(55)) {
            (0xFF, _) | (0, Some(_)) => return None,
            (_, Some(next)) if *next != b'-' => return None,
            _ => {}
        }
        let trace = hexadecimal(&fields[3..35])?;
        let span = hexadecimal(&fields[36..52])? as u64;
        let is_sampled = hexadecimal(&fields[53..])? & 1 == 1;
        (trace != 0 && span != 0).then_some(Self { trace, span, is_sampled })
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, span, is_sampled } = self;
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", u8::from(*is_sampled))
    }
}

/// At most 32 lower-case digits.
fn hexadecimal(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

impl TraceContext {
    /// The span in which the request is now, as the next program gets it.
    pub fn parent(&self) -> TraceParent {
        TraceParent { trace: self.trace, span: self.span, is_sampled: true }
    }

    /// The position at the node with the client's connection.
    pub fn at_origin(&self) -> Self {
        Self { span: self.origin, ..*self }
    }

    /// The position at the node with the client's connection as text, for other nodes.
    pub fn origin_text(&self) -> String {
        self.at_origin().parent().to_string()
    }

    /// Reads the text of another node.
    pub fn of_origin_text(text: &str) -> Option<Self> {
        let TraceParent { trace, span, .. } = TraceParent::parse(text)?;
        Some(Self { trace, span, origin: span })
    }
}

impl Request {
    /// The `traceparent` and the `tracestate` of the request's `_meta`.
    pub fn trace_parent(&self) -> Option<(TraceParent, Option<Cow<'_, str>>)> {
        trace_parent_in(self.params_text()?)
    }

    /// The same request with another `traceparent`. Its `tracestate` stays if it is of the same trace;
    /// every other byte stays in any case. A request whose `_meta` is not an object stays as it is.
    pub fn with_trace_parent(&self, parent: &TraceParent) -> Self {
        let Some(params) = self.params_text() else {
            let params = format!("{{\"_meta\":{{\"{TRACE_PARENT}\":\"{parent}\"}}}}");
            return self.with_params(params.as_bytes());
        };
        let Some((at, text)) = edit(&self.raw, params, parent) else { return self.clone() };
        let (raw, _, shift) = splice(&self.raw, &at, text.as_bytes());
        let Shift { by, .. } = shift;
        let id_at = shift.apply(self.id_at.clone());
        let params = self.params.clone();
        let params = params.map(|span| span.start..span.end.saturating_add_signed(by));
        Self { raw, id_at, params, ..self.clone() }
    }
}

impl Notification {
    /// The `traceparent` and the `tracestate` of the notification's `_meta`.
    pub fn trace_parent(&self) -> Option<(TraceParent, Option<Cow<'_, str>>)> {
        trace_parent_in(&self.raw[self.params.clone()?])
    }
}

fn trace_parent_in(params: &[u8]) -> Option<(TraceParent, Option<Cow<'_, str>>)> {
    static PARENT: Needle = Needle::new(|| Finder::new(TRACE_PARENT));
    // Most messages have none, which this search finds without a parse.
    if !may_hold(params, &PARENT) {
        return None;
    }
    let [meta] = pick(params, ["_meta"])?;
    let [parent, state] = pick(meta?.as_bytes(), [TRACE_PARENT, TRACE_STATE])?;
    let parent = TraceParent::parse(&text(parent?)?)?;
    let state = state.and_then(text).filter(|state| is_trace_state(state));
    Some((parent, state))
}

/// Whether a `tracestate` is as the specification has it (W3C Trace Context, section 3.3.1).
pub fn is_trace_state(text: &str) -> bool {
    let is_key = |key: &str| {
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-*/@".contains(c);
        (1..=256).contains(&key.len())
            && key.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && key.chars().all(is_part)
    };
    let is_value = |value: &str| {
        (1..=256).contains(&value.len())
            && value.bytes().all(|byte| matches!(byte, b' '..=b'~') && !b",=".contains(&byte))
    };
    let is_member = |member: &str| {
        let member = member.trim_matches([' ', '\t']);
        member.is_empty()
            || member.split_once('=').is_some_and(|(key, value)| is_key(key) && is_value(value))
    };
    text.len() <= STATE_BYTES_MAX
        && text.split(',').count() <= STATE_MEMBERS_MAX
        && text.split(',').all(is_member)
        && text.contains('=')
}

/// The text that a JSON string has.
fn text(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(json).ok().map(Cow::Owned)
}

/// The place in `raw` at which `_meta` is or belongs, and what it is to be.
fn edit(raw: &[u8], params: &[u8], parent: &TraceParent) -> Option<(Span, String)> {
    let whole = Object::read(params)?;
    let own = quoted(&parent.to_string());
    let Some(meta) = whole.get("_meta") else {
        let start = params.as_ptr().addr() - raw.as_ptr().addr();
        let brace = start + memchr::memchr(b'{', params)? + 1;
        let comma = if whole.members.is_empty() { "" } else { "," };
        return Some((brace..brace, format!("\"_meta\":{{\"{TRACE_PARENT}\":{own}}}{comma}")));
    };
    let members = Object::read(meta.as_bytes())?;
    let before = members.get(TRACE_PARENT).and_then(text);
    let before = before.and_then(|before| TraceParent::parse(&before));
    let is_same = before.is_some_and(|before| before.trace == parent.trace);
    let kept = members
        .members
        .iter()
        .filter(|(key, _)| key != TRACE_PARENT && (is_same || key != TRACE_STATE));
    let kept = kept.map(|(key, value)| (&**key, value.get()));
    let meta_text = object(kept.chain([(TRACE_PARENT, &*own)]));
    Some((span_in(raw, meta), meta_text))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::{Message, RequestId};

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn request(json: &str) -> Request {
        match Message::parse(Bytes::copy_from_slice(json.as_bytes())) {
            Ok(Message::Request(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_traceparent_is_read_as_the_specification_has_it() {
        let parent = TraceParent::parse(PARENT).unwrap();
        assert_eq!(parent.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(parent.span, 0x00f0_67aa_0ba9_02b7);
        assert!(parent.is_sampled);
        assert_eq!(parent.to_string(), PARENT);
        let later = format!("cc{}-what-the-future-will-be", &PARENT[2..]);
        assert_eq!(TraceParent::parse(&later), Some(parent));
        let unsampled = TraceParent::parse(&PARENT.replace("-01", "-02")).unwrap();
        assert!(!unsampled.is_sampled);
        for wrong in [
            "",
            "00",
            &PARENT[..54],
            &PARENT.to_uppercase(),
            &PARENT.replace("00-4b", "ff-4b"),
            &PARENT.replace("-01", "-0x"),
            &PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &PARENT.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &format!("{PARENT}-"),
            &format!("{PARENT} "),
            &format!(" {PARENT}"),
            &later.replace("-what", "what"),
            &format!("cc{}-{}", &PARENT[2..], "x".repeat(PARENT_BYTES_MAX)),
            &PARENT.replace('-', "ä"),
        ] {
            assert_eq!(TraceParent::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_tracestate_is_taken_whole_or_not_at_all() {
        for state in
            ["a=b", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "0a_-*/@x=! , \tb=~", "a=b,"]
        {
            assert!(is_trace_state(state), "{state}");
        }
        let (long, many) = ("a=".to_owned() + &"x".repeat(257), vec!["a=b"; 33].join(","));
        let longer = ["a=".to_owned() + &"x".repeat(256), "b=".to_owned() + &"x".repeat(256)];
        for state in
            ["", ",", "a", "a=", "=b", "A=b", "a=b=c", "a=b,=", "a=\u{1}", "a=\u{e9}", "a b=c"]
                .into_iter()
                .chain([&*long, &*many, &*longer.join(",")])
        {
            assert!(!is_trace_state(state), "{state}");
        }
    }

    #[track_caller]
    fn check(json: &str, expected: &str) {
        let parent = TraceParent { trace: 0xa, span: 0xb, is_sampled: true };
        let before = request(json);
        let after = before.with_trace_parent(&parent);
        let expected = expected.replace("NEW", &parent.to_string());
        assert_eq!(std::str::from_utf8(after.raw()).unwrap(), expected);
        // The positions are those of a message that was parsed.
        assert_eq!(after.params(), request(&expected).params());
        let other = RequestId::from("another".to_owned());
        assert_eq!(after.with_id(other.clone()).raw(), request(&expected).with_id(other).raw());
    }

    #[test]
    fn only_the_trace_of_a_request_is_replaced() {
        check(
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"traceparent":"NEW"}}}"#,
        );
        check(
            r#"{"jsonrpc":"2.0","method":"x","params": { } ,"id":1}"#,
            r#"{"jsonrpc":"2.0","method":"x","params": {"_meta":{"traceparent":"NEW"} } ,"id":1}"#,
        );
        check(
            r#"{"method":"x","params":{"name" : "é", "n":1e3},"jsonrpc":"2.0","id":"a"}"#,
            r#"{"method":"x","params":{"_meta":{"traceparent":"NEW"},"name" : "é", "n":1e3},"jsonrpc":"2.0","id":"a"}"#,
        );
        check(
            r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":[1, 2],"_meta":{"progressToken": 7,"o":{"p" : 1}},"b":2}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":[1, 2],"_meta":{"progressToken":7,"o":{"p" : 1},"traceparent":"NEW"},"b":2}}"#,
        );
    }

    #[test]
    fn the_state_of_another_trace_is_not_passed_on() {
        let own = "00-0000000000000000000000000000000a-00f067aa0ba902b7-00";
        let json = |parent: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"_meta":{{"tracestate":"a=b","traceparent":"{parent}"}}}}}}"#
            )
        };
        check(
            &json(own),
            r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"tracestate":"a=b","traceparent":"NEW"}}}"#,
        );
        for foreign in [PARENT, "nonsense"] {
            check(
                &json(foreign),
                r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"traceparent":"NEW"}}}"#,
            );
        }
    }

    #[test]
    fn a_request_whose_meta_is_no_object_stays_as_it_is() {
        for meta in ["7", "null", "[]", "\"x\""] {
            let json =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"_meta":{meta}}}}}"#);
            check(&json, &json);
            assert_eq!(request(&json).trace_parent(), None);
        }
    }

    #[test]
    fn an_origin_is_the_same_for_another_node() {
        let context = TraceContext { trace: 1, span: 2, origin: 3 };
        let text = context.origin_text();
        assert_eq!(TraceContext::of_origin_text(&text), Some(context.at_origin()));
    }

    proptest! {
        #[test]
        fn any_text_is_a_traceparent_or_none(text in ".{0,70}", state in ".{0,20}") {
            let _ = TraceParent::parse(&text);
            let meta = serde_json::json!({ "traceparent": text, "tracestate": state });
            let json = serde_json::json!({
                "jsonrpc": "2.0", "id": 1, "method": "x", "params": { "_meta": meta }
            });
            let request = request(&json.to_string());
            let parent = TraceParent { trace: 0xa, span: 0xb, is_sampled: true };
            let after = request.with_trace_parent(&parent);
            prop_assert_eq!(after.trace_parent().map(|(read, _)| read), Some(parent));
        }

        #[test]
        fn a_valid_traceparent_is_what_it_writes(
            trace in 1..u128::MAX, span in 1..u64::MAX, is_sampled: bool,
        ) {
            let parent = TraceParent { trace, span, is_sampled };
            prop_assert_eq!(TraceParent::parse(&parent.to_string()), Some(parent));
        }

        #[test]
        fn a_spoilt_traceparent_never_panics(at in 0..55_usize, byte in any::<char>()) {
            let mut text: Vec<char> = PARENT.chars().collect();
            text[at] = byte;
            let text: String = text.into_iter().collect();
            if let Some(parent) = TraceParent::parse(&text) {
                prop_assert!(parent.trace != 0 && parent.span != 0);
            }
        }
    }
}

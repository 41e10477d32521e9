//! What a request is about, for a record: the tool, prompt or resource that it names.
//!
//! Only the names of members are read, in one pass. Unlike [`crate::named`] this decides nothing: if
//! servers could read another name, the result is marked.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter};

use crate::glance::Members;
use crate::raw::pick;
use crate::{Method, Named, Request, RequestId, named_in_request};

/// What a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About<'a> {
    /// `tool`, `prompt` or `resource`, and its name; `None` if the method names none of them.
    pub subject: Option<(&'static str, Cow<'a, str>)>,
    /// Whether a server could read another method or name.
    pub is_ambiguous: bool,
}

impl<'a> About<'a> {
    /// What the request is about.
    pub fn of(request: &'a Request) -> Self {
        let (kind, key) = match request.method {
            Method::ToolsCall => ("tool", &b"name"[..]),
            Method::PromptsGet => ("prompt", &b"name"[..]),
            Method::ResourcesRead | Method::Subscribe | Method::Unsubscribe => {
                ("resource", &b"uri"[..])
            }
            Method::Complete => return completed(request),
            _ => ("", &b""[..]),
        };
        let mut found = Found { key, ..Found::default() };
        match is_plain(request) {
            true => found.read_plain(request),
            false => found.read_envelope(request.raw()),
        }
        found.about(kind)
    }
}

/// A reference to a prompt or to a resource is deeper in the parameters, and rare.
fn completed(request: &Request) -> About<'_> {
    match named_in_request(request) {
        Ok(Named::Prompt(name)) => About { subject: Some(("prompt", name)), is_ambiguous: false },
        Ok(Named::Resource(uri)) => About { subject: Some(("resource", uri)), is_ambiguous: false },
        _ => About { subject: None, is_ambiguous: true },
    }
}

/// Whether the envelope has the members that were parsed, and no other. `false` also for some that have
/// no other: these are read whole.
fn is_plain(request: &Request) -> bool {
    has_no_room(request) || has_no_more_quotes(request)
}

/// The bytes of an envelope without blanks, but for the values of these members. Most clients write no
/// blanks.
const COMPACT_BYTES: usize = r#"{"jsonrpc":"2.0","id":,"method":""}"#.len();
const COMPACT_PARAMS_BYTES: usize = r#","params":"#.len();

/// Whether the members that were parsed need every byte of the envelope.
fn has_no_room(request: &Request) -> bool {
    let params = request.params_text().map_or(0, |params| COMPACT_PARAMS_BYTES + params.len());
    let needed = COMPACT_BYTES + request.id_text().len() + request.method.as_str().len() + params;
    request.raw().len() <= needed
}

/// Whether the envelope has only the quotes of the members that were parsed: another one would have more.
/// `false` also if there is an escape, or a character beyond ASCII.
fn has_no_more_quotes(request: &Request) -> bool {
    let (mut quotes, mut is_odd) = (0, false);
    for part in request.envelope() {
        quotes += memchr_iter(b'"', part).count();
        is_odd |= has_odd_bytes(part);
    }
    let of_id = if let RequestId::String(_) = request.id { 2 } else { 0 };
    let of_params = if request.params_text().is_some() { 2 } else { 0 };
    // Three keys, the version and the method have ten.
    !is_odd && quotes == 10 + of_id + of_params
}

/// Whether there is a backslash, without which each quote begins or ends a text, or a byte beyond ASCII: some
/// parsers take such a letter for another one. Without an early end, so that many bytes are compared at once.
fn has_odd_bytes(text: &[u8]) -> bool {
    text.iter().fold(false, |odd, byte| odd | (*byte == b'\\') | !byte.is_ascii())
}

/// Longer parameters are read by [`Found::read_params`], which skips a long text faster.
const SHORT_PARAMS_BYTES: usize = 1_024;

/// The value of the first member, if it has this key and no server can read another one: most clients name a
/// tool first. Of short parameters this takes a third of the instructions of [`Found::read_params`]. `None` also
/// for some parameters that have one name only.
fn only_name<'a>(params: &'a [u8], key: &[u8]) -> Option<&'a str> {
    if params.len() > SHORT_PARAMS_BYTES {
        return None;
    }
    let from_name = params.strip_prefix(b"{\"")?.strip_prefix(key)?.strip_prefix(b"\":\"")?;
    let (name, rest) = from_name.split_at(memchr(b'"', from_name)?);
    if has_odd_bytes(params) {
        return None;
    }
    // A key that is deeper, or a text, may end in this way too: that takes a reading of all members.
    let [.., second, last] = *key else { return None };
    let pairs = std::iter::zip(rest, rest.get(1..)?);
    let ends = std::iter::zip(pairs, rest.get(2..).unwrap_or_default());
    // Keys are lower-case letters, which differ from upper-case ones in this bit only. Without an early end, and with
    // numbers, so that many bytes are compared at once.
    let is = |byte: &u8, letter: u8| u8::from(*byte | 0x20 == letter);
    let ends_as_key = ends.fold(0, |found, ((one, two), three)| {
        found | (is(one, second) & is(two, last) & u8::from(*three == b'"'))
    });
    if ends_as_key == 1 { None } else { str::from_utf8(name).ok() }
}

/// What is found in one pass.
#[derive(Default)]
struct Found<'a> {
    key: &'a [u8],
    name: Option<Cow<'a, str>>,
    names: u32,
    methods: u32,
    params: u32,
    /// Whether there is a key that some parsers take for another one.
    has_odd_key: bool,
}

impl<'a> Found<'a> {
    /// Reads a request whose envelope has the members that were parsed, and no other.
    fn read_plain(&mut self, request: &'a Request) {
        self.methods = 1;
        if let (Some(params), false) = (request.params_text(), self.key.is_empty()) {
            match only_name(params, self.key) {
                Some(name) => (self.names, self.name) = (1, Some(Cow::Borrowed(name))),
                None => _ = self.read_params(params),
            }
        }
    }

    fn read_envelope(&mut self, raw: &'a [u8]) {
        let Some(mut members) = Members::of(raw) else { return };
        while let Some(key) = members.next_key() {
            self.look_at(key);
            if key.eq_ignore_ascii_case(b"method") {
                self.methods += 1;
                self.has_odd_key |= key != b"method";
            } else if key.eq_ignore_ascii_case(b"params") {
                self.params += 1;
                self.has_odd_key |= key != b"params";
                if !self.key.is_empty()
                    && let Some(length) = self.read_params(members.rest())
                {
                    members.skip_bytes(length);
                    continue;
                }
            }
            if members.skip_value().is_none() {
                return;
            }
        }
    }

    /// Returns the length of the parameters, if they are an object that was read to its end.
    fn read_params(&mut self, params: &'a [u8]) -> Option<usize> {
        let mut members = Members::of(params)?;
        while let Some(key) = members.next_key() {
            self.look_at(key);
            if key.eq_ignore_ascii_case(self.key) {
                self.names += 1;
                self.has_odd_key |= key != self.key;
                if self.name.is_none() && members.rest().starts_with(b"\"") {
                    self.name = Some(members.take_text()?);
                    continue;
                }
            }
            members.skip_value()?;
        }
        members.rest().starts_with(b"}").then(|| params.len() - members.rest().len() + 1)
    }

    /// What was found, of this kind.
    fn about(self, kind: &'static str) -> About<'a> {
        let is_ambiguous = self.is_ambiguous();
        About { subject: self.name.map(|name| (kind, name)), is_ambiguous }
    }

    fn look_at(&mut self, key: &[u8]) {
        self.has_odd_key |= has_odd_bytes(key);
    }

    fn is_ambiguous(&self) -> bool {
        let lacks_name = !self.key.is_empty() && (self.names != 1 || self.name.is_none());
        self.has_odd_key || self.methods != 1 || self.params > 1 || lacks_name
    }
}

/// The JSON text of a member within objects, by the names of the members on the way; of members of
/// one name the last one.
pub fn member_at<'a, T: AsRef<str>>(json: &'a [u8], path: &[T]) -> Option<&'a str> {
    let (first, rest) = path.split_first()?;
    let [member] = pick(json, [first.as_ref()])?;
    let member = member?;
    if rest.is_empty() { Some(member) } else { member_at(member.as_bytes(), rest) }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::{Message, named};

    fn request(json: &str) -> Request {
        match Message::parse(Bytes::from(json.to_owned())).unwrap() {
            Message::Request(request) => request,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn check(method: &str, params: &str, subject: Option<(&'static str, &str)>, is_clear: bool) {
        let json = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let request = request(&json);
        let about = About::of(&request);
        let found = about.subject.as_ref().map(|(kind, name)| (*kind, &**name));
        assert_eq!((found, !about.is_ambiguous), (subject, is_clear), "{json}");
        let message = Message::Request(request.clone());
        if let Ok(Named::Tool(name)) = named(&message) {
            assert_eq!(about.subject, Some(("tool", name)));
            assert!(!about.is_ambiguous);
        }
    }

    #[test]
    fn a_request_is_about_what_it_names() {
        let tool = Some(("tool", "echo"));
        check("tools/call", r#"{"name":"echo","arguments":{"name":"x"}}"#, tool, true);
        check("tools/call", r#"{"arguments":{"a":[1,"\"}"]}, "name" : "ec\u0068o" }"#, tool, true);
        check("prompts/get", r#"{"name":"p"}"#, Some(("prompt", "p")), true);
        check("resources/read", r#"{"uri":"a://b"}"#, Some(("resource", "a://b")), true);
        check("resources/subscribe", r#"{"uri":"a://b"}"#, Some(("resource", "a://b")), true);
        check("tools/list", r#"{"name":"x"}"#, None, true);
        check("own/method", r#"{"name":"x"}"#, None, true);
        let reference = r#"{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"x"}}"#;
        check("completion/complete", reference, Some(("prompt", "p")), true);
        check("completion/complete", "{}", None, false);
    }

    #[test]
    fn a_name_that_servers_could_read_in_another_way_is_ambiguous() {
        let first = Some(("tool", "a"));
        check("tools/call", r#"{"name":"a","name":"b"}"#, first, false);
        for other in ["Name", "naMe", "namE", "NAME"] {
            check("tools/call", &format!(r#"{{"name":"a","{other}" :"b"}}"#), first, false);
            check("tools/call", &format!(r#"{{"name":"a","b":1,"{other}":"b"}}"#), first, false);
        }
        check("resources/read", r#"{"uri":"a","uRI":"b"}"#, Some(("resource", "a")), false);
        check("tools/call", r#"{"name":"a","b":["name",{"name":"me"}],"":"me"}"#, first, true);
        check("tools/call", r#"{"name":"me"}"#, Some(("tool", "me")), true);
        check("tools/call", r#"{"name":"a","n\u0061me":"b"}"#, first, false);
        check("tools/call", r#"{"name":"a","ſ":"b"}"#, first, false);
        check("tools/call", r#"{"name":7}"#, None, false);
        check("tools/call", "{}", None, false);
        check("tools/call", r#"{"name":"a"},"Params":{"name":"b"}"#, first, false);
        check("tools/list", r#"{},"Method":"tools/call""#, None, false);
    }

    #[test]
    fn an_envelope_is_plain_if_it_has_the_members_that_were_parsed_and_no_other() {
        let is_plain = |members: &str| {
            let json = format!(r#"{{"jsonrpc":"2.0",{members},"method":"x"}}"#);
            super::is_plain(&request(&json))
        };
        for plain in [
            r#""id":1"#,
            r#""id":"a""#,
            r#" "id" : -7 , "params" : {"a":"\"\u00e4","b":["ä"]} "#,
            r#""params":{},"id":"1""#,
            r#""id":"a\"""#,
            r#""id":"ä""#,
        ] {
            assert!(is_plain(plain), "{plain}");
        }
        for other in [
            r#""id":1,"Method":1"#,
            r#""id":1,"":1"#,
            r#""i\u0064":1"#,
            r#""i\u0064":"a","":1"#,
            // With blanks, an escape or a character beyond ASCII could be part of another member.
            r#""id": "a\"""#,
            r#""id": "ä""#,
            r#""params":{},"id":1,"Params":{"name":"x"}"#,
        ] {
            assert!(!is_plain(other), "{other}");
        }
    }

    proptest! {
        #[test]
        fn a_plain_envelope_is_read_as_any_other(
            id in r#" ?(1|"a"|"\\")"#, between in r#"(,"(Params|Method|a|ä|\\u0061)":1)?"#,
            params in r#"\{("name":"[a\\"]{0,2}"|"[nN]ame":1|"a":\[\{"name":1\}\])?(,"(name|Name|naMe|NAME|n\\u0061me|ä|b|)" ?:("x"|"me"|\{"name":"x"\})){0,2}\}"#,
        ) {
            let json = format!(r#"{{"jsonrpc":"2.0","id":{id}{between},"method":"tools/call","params":{params}}}"#);
            if let Ok(Message::Request(request)) = Message::parse(Bytes::from(json)) {
                let mut whole = Found { key: b"name", ..Found::default() };
                whole.read_envelope(request.raw());
                prop_assert_eq!(About::of(&request), whole.about("tool"));
            }
        }
    }

    #[test]
    fn a_member_is_found_by_its_path() {
        let json = br#"{"a":{"b":{"c":[1, 2]},"d":"x","d":"y"}}"#;
        let at = |path: &str| member_at(json, &path.split('.').collect::<Vec<_>>());
        assert_eq!(at("a.b.c"), Some("[1, 2]"));
        assert_eq!(at("a.d"), Some("\"y\""));
        assert_eq!((at("a.x"), at("a.d.x"), at("")), (None, None, None));
    }
}

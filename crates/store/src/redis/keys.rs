//! The names of Redis keys, and their slots.
//!
//! All keys of a session share a hash tag, and so do all keys about nodes: a script
//! touches one slot only.

use protocol::SessionId;

use crate::{Incarnation, NoteKey};

/// The number of slots of a Redis Cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The keys of one installation.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.into() }
    }

    /// The keys of a session's record and log.
    pub(super) fn session(&self, session: &SessionId) -> [String; 2] {
        let record = self.record(session);
        let log = format!("{record}:log");
        [record, log]
    }

    /// The key of a session's record.
    pub(super) fn record(&self, session: &SessionId) -> String {
        format!("{}:{{{}}}", self.prefix, tag(session))
    }

    /// The pattern of the keys of records, and of no other key of this installation but that of the nodes.
    pub(super) fn pattern_of_records(&self) -> String {
        let mut pattern = String::with_capacity(self.prefix.len() + 4);
        for letter in self.prefix.chars() {
            if matches!(letter, '*' | '?' | '[' | ']' | '^' | '\\') {
                pattern.push('\\');
            }
            pattern.push(letter);
        }
        pattern + ":{*}"
    }

    /// The session whose record has this key; `None` for each other key.
    pub(super) fn session_of(&self, key: &str) -> Option<SessionId> {
        let tag = key.strip_prefix(&self.prefix)?.strip_prefix(":{")?.strip_suffix('}')?;
        let id = tag.replace("%7B", "{").replace("%7D", "}").replace("%25", "%");
        let session = SessionId::parse(if tag == "%nodes" { "nodes" } else { &id })?;
        (self.record(&session) == key).then_some(session)
    }

    /// The key of the sorted set of incarnations, ordered by the expiry of their leases.
    pub(super) fn nodes(&self) -> String {
        format!("{}:{{nodes}}", self.prefix)
    }

    /// The key of the revocations.
    pub(super) fn revocations(&self) -> String {
        format!("{}:{{nodes}}:revocations", self.prefix)
    }

    /// The key of a note.
    pub(super) fn note(&self, note: &NoteKey) -> String {
        let digits: String = note.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}:note:{digits}", self.prefix)
    }

    /// The key of one incarnation's lease or dead mark.
    pub(super) fn node(&self, incarnation: Incarnation) -> String {
        format!("{}:{{nodes}}:{incarnation}", self.prefix)
    }
}

/// The session id as a hash tag. Clients can send any id: a brace would end the tag, and
/// `nodes` is the tag of the keys about nodes.
fn tag(session: &SessionId) -> String {
    if session.as_str() == "nodes" {
        return "%nodes".into();
    }
    let mut tag = String::with_capacity(session.as_str().len());
    for letter in session.as_str().chars() {
        match letter {
            '{' => tag.push_str("%7B"),
            '}' => tag.push_str("%7D"),
            '%' => tag.push_str("%25"),
            other => tag.push(other),
        }
    }
    tag
}

/// The slot of a key, by the rules of Redis Cluster.
pub(super) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').filter(|end| *end > 0).map(|end| &rest[..end])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            let carry = crc & 0x8000 != 0;
            (crc << 1) ^ if carry { 0x1021 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> SessionId {
        SessionId::parse(text).expect("a valid id")
    }

    #[test]
    fn keys_have_the_documented_names() {
        let keys = Keys::new("rh");
        assert_eq!(keys.session(&id("abc-1")), ["rh:{abc-1}", "rh:{abc-1}:log"]);
        assert_eq!(keys.nodes(), "rh:{nodes}");
        assert_eq!(keys.revocations(), "rh:{nodes}:revocations");
        assert_eq!(keys.node(Incarnation(255)), "rh:{nodes}:00000000000000ff");
    }

    #[test]
    fn no_session_id_has_the_keys_of_another() {
        let keys = Keys::new("rh");
        let ids = ["nodes", "%nodes", "}", "{", "a}b", "a}", "a", "%7D", "%", "{a}", "nodes}:x{"];
        let mut all: Vec<String> = ids.iter().flat_map(|text| keys.session(&id(text))).collect();
        all.push(keys.nodes());
        for text in ids {
            let [record, log] = keys.session(&id(text));
            assert_eq!(slot(record.as_bytes()), slot(log.as_bytes()), "{text}");
        }
        for text in ids {
            let [record, log] = keys.session(&id(text));
            assert_eq!(keys.session_of(&record), Some(id(text)));
            assert_eq!(keys.session_of(&log), None, "{text}");
        }
        for key in [keys.nodes(), keys.revocations(), keys.node(Incarnation(1))] {
            assert_eq!(keys.session_of(&key), None, "{key}");
        }
        for key in ["rh:{a", "rh:a}", "rh2:{a}", "rh:{a{b}", "rh:{%}", "rh:{}", ""] {
            assert_eq!(keys.session_of(key), None, "{key}");
        }
        assert_eq!(Keys::new("a*[b]").pattern_of_records(), "a\\*\\[b\\]:{*}");
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn slots_are_computed_as_by_redis_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"{foo}bar"), slot(b"foo"));
        assert_eq!(slot(b"{}foo"), crc16(b"{}foo") % SLOTS);
    }
}

//! The rules for event ids, over all sessions.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::{Entry, Key, What};
use super::Violation;

/// An event id, `<stream>.<owner_tag>-<number>`.
fn parts(id: &str) -> Option<(u64, &str, u64)> {
    let (stream, rest) = id.split_once('.')?;
    let (owner_tag, number) = rest.rsplit_once('-')?;
    Some((stream.parse().ok()?, owner_tag, number.parse().ok()?))
}

/// In a session, each event id has one payload and one stream, the ids on a stream rise, and the
/// numbers of an owner are not interleaved with those of another.
pub(super) fn all(entries: &[Entry]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut payloads: HashMap<(&str, &str), (&Key, String)> = HashMap::new();
    let mut last: HashMap<&Key, u64> = HashMap::new();
    let mut owner_tags: BTreeMap<&str, BTreeMap<u64, &str>> = BTreeMap::new();
    for entry in entries {
        let (on, id, payload) = match &entry.what {
            What::Event { on, id: Some(id), content } => (on, id, format!("{content:?}")),
            What::FinalResponse { on, id: Some(id), of, text, .. } => {
                (on, id, format!("{of} {text}"))
            }
            _ => continue,
        };
        let mut say = |rule, seen: String| {
            found.push(Violation { rule, key: on.clone(), seen });
        };
        let before = payloads.insert((&entry.session, id), (on, payload.clone()));
        match before {
            Some((other, said)) if said != payload => {
                say("two payloads", format!("{id} has {said} on {other}, and {payload}"));
            }
            Some((other, _)) if other != on => {
                say("wrong stream", format!("{id} came on {other}, too"));
            }
            Some(_) => say("doubled", id.clone()),
            None => {}
        }
        let Some((_, owner_tag, number)) = parts(id) else {
            say("two payloads", format!("{id} is not an id of a node"));
            continue;
        };
        if last.insert(on, number).is_some_and(|last| last > number) {
            say("reordered", format!("{id} after number {:?}", last.get(on)));
        }
        let other = owner_tags.entry(&entry.session).or_default().insert(number, owner_tag);
        if let Some(other) = other.filter(|other| *other != owner_tag) {
            say("two owners", format!("{id}, and number {number} of {other}"));
        }
    }
    for (session, numbers) in owner_tags {
        let mut done = BTreeSet::new();
        let mut now = "";
        for (number, owner_tag) in numbers {
            if owner_tag != now {
                if !done.insert(owner_tag) {
                    let seen = format!("{owner_tag} writes again at number {number}, after {now}");
                    let key = session.to_owned();
                    found.push(Violation { rule: "two owners", key, seen });
                }
                now = owner_tag;
            }
        }
    }
    found
}

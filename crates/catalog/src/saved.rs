//! What another node needs to carry a catalog on: what was promised to the client, the states that the
//! links of the servers have saved, and which resources results had links to; and how far the streams of each
//! server were read.
//!
//! The states are opaque here. Names and prefixes are kept with them: a catalog whose servers have others
//! is another one, and is not carried on.

use bytes::Bytes;
use protocol::{InitializeResult, Position};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::member::Members;

/// The format that this version writes, and the only one that it reads.
const FORMAT: u32 = 1;

/// Longest state of a catalog, in bytes. Servers whose states do not fit begin anew at the next owner.
const STATE_BYTES_MAX: usize = 48_000;

/// Most bytes of links to resources in a state. The oldest are left out, and those that do not fit beside the states.
const LINKS_BYTES_MAX: usize = 8_000;
/// The bytes of a link beside those of its URI, and of a list of links.
const LINK_BYTES: usize = 12;

/// The first line of a state. The states of the servers follow, one behind the other.
#[derive(Serialize, Deserialize)]
struct Head<'a> {
    format: u32,
    /// The result of the session's `initialize`, without instructions.
    #[serde(borrow)]
    result: &'a RawValue,
    servers: Vec<HeadOfServer<'a>>,
    /// As [`Saved::links`].
    #[serde(default, borrow, skip_serializing_if = "Vec::is_empty")]
    links: Vec<(usize, std::borrow::Cow<'a, str>)>,
}

#[derive(Serialize, Deserialize)]
struct HeadOfServer<'a> {
    name: std::borrow::Cow<'a, str>,
    prefix: std::borrow::Cow<'a, str>,
    /// The length of its state; 0 if there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    bytes: usize,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    lost: bool,
}

fn is_zero(bytes: &usize) -> bool {
    *bytes == 0
}

/// What is known of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ServerState {
    /// It begins anew at each owner.
    #[default]
    Anew,
    /// What its link has saved.
    Saved(Bytes),
    /// It has lost a state that clients rely on: the session does not use it any more.
    Lost,
}

/// The state of a catalog.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    /// The result of the session's `initialize`, without instructions.
    pub(crate) result: Bytes,
    /// In the order of the members.
    pub(crate) servers: Vec<ServerState>,
    /// The resources to which results of these servers had links, the newest first.
    pub(crate) links: Vec<(usize, String)>,
}

impl Saved {
    /// Encodes a state; empty if no server has one. Also returns the servers whose states do not fit. `links` are
    /// as the field.
    pub(crate) fn encode<'a>(
        members: &Members,
        result: &[u8],
        servers: &[&ServerState],
        links: impl IntoIterator<Item = (usize, &'a str)>,
    ) -> (Bytes, Vec<usize>) {
        let Ok(result) = serde_json::from_slice::<&RawValue>(result) else {
            return Default::default();
        };
        if servers.iter().all(|state| **state == ServerState::Anew) {
            return Default::default();
        }
        let head = |lengths: &[usize], links| {
            let of_server = |(at, bytes): (usize, &usize)| {
                let member = members.get(at);
                HeadOfServer {
                    name: (*member.name).into(),
                    prefix: (*member.prefix).into(),
                    bytes: *bytes,
                    lost: *servers[at] == ServerState::Lost,
                }
            };
            let servers = lengths.iter().enumerate().map(of_server).collect();
            serde_json::to_vec(&Head { format: FORMAT, result, servers, links }).unwrap_or_default()
        };
        let (mut lengths, mut left_out) = (vec![STATE_BYTES_MAX; servers.len()], Vec::new());
        let mut room = STATE_BYTES_MAX.saturating_sub(head(&lengths, Vec::new()).len() + 1);
        let mut states = Vec::new();
        for (at, state) in servers.iter().enumerate() {
            lengths[at] = 0;
            let ServerState::Saved(state) = state else { continue };
            match room.checked_sub(state.len()) {
                Some(left) => {
                    (room, lengths[at]) = (left, state.len());
                    states.extend_from_slice(state);
                }
                None => left_out.push(at),
            }
        }
        let mut room = room.min(LINKS_BYTES_MAX).saturating_sub(LINK_BYTES);
        let links = links.into_iter().map_while(|(child, uri)| {
            let bytes = serde_json::to_vec(uri).ok()?.len() + LINK_BYTES;
            room = room.checked_sub(bytes)?;
            Some((child, uri.into()))
        });
        let mut encoded = head(&lengths, links.collect());
        encoded.push(b'\n');
        encoded.append(&mut states);
        (encoded.into(), left_out)
    }

    /// Reads a state; `None` for any that this version does not write, and for that of a catalog of other
    /// servers.
    pub(crate) fn read(members: &Members, state: &Bytes) -> Option<Self> {
        let end = state.iter().position(|byte| *byte == b'\n')?;
        let head: Head<'_> = serde_json::from_slice(&state[..end]).ok()?;
        if head.format != FORMAT || head.servers.len() != members.len() {
            return None;
        }
        let result = Bytes::copy_from_slice(head.result.get().as_bytes());
        InitializeResult::read(&result).ok()?;
        let mut at = end + 1;
        let mut servers = Vec::with_capacity(head.servers.len());
        for (index, server) in head.servers.iter().enumerate() {
            let member = members.get(index);
            if *server.name != *member.name || *server.prefix != *member.prefix {
                return None;
            }
            let until = at.checked_add(server.bytes)?;
            servers.push(match (server.lost, server.bytes) {
                (true, _) => ServerState::Lost,
                (false, 0) => ServerState::Anew,
                (false, _) if until <= state.len() => ServerState::Saved(state.slice(at..until)),
                (false, _) => return None,
            });
            at = until;
        }
        let links = head.links.into_iter().filter(|(child, _)| *child < members.len());
        let links = links.map(|(child, uri)| (child, uri.into_owned())).collect();
        (at == state.len()).then_some(Self { result, servers, links })
    }
}

/// The position of a stream of this server, among those of the catalog; `None` for one that is too long.
pub(crate) fn position_of_catalog(child: usize, position: &Position) -> Option<Position> {
    let stream = format!("{child} {}", position.stream).into();
    let position = Position { stream, at: position.at.clone() };
    (position.bytes() <= Position::BYTES_MAX).then_some(position)
}

/// The server of a position of the catalog, and the position there.
pub(crate) fn position_of_server(position: &Position) -> Option<(usize, Position)> {
    let (child, stream) = position.stream.split_once(' ')?;
    let position = Position { stream: stream.into(), at: position.at.clone() };
    Some((child.parse().ok()?, position))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemberSettings;

    const RESULT: &[u8] = br#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"a","version":"1"}}"#;

    const LINKS: [(usize, &str); 2] = [(3, "x:/\"new\""), (0, "x:/old")];

    fn members(names: &[&str]) -> Members {
        let plain = MemberSettings::default();
        Members::new(names.iter().map(|name| (*name, &plain))).unwrap()
    }

    fn saved(bytes: &[u8]) -> ServerState {
        ServerState::Saved(Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn a_state_reads_back_for_the_same_servers_only() {
        let members_now = members(&["a", "b", "c", "d"]);
        let servers =
            [saved(b"\n\xff{"), ServerState::Anew, ServerState::Lost, saved(b"another one")];
        let all: Vec<_> = servers.iter().collect();
        let (state, left_out) = Saved::encode(&members_now, RESULT, &all, LINKS);
        assert!(left_out.is_empty());
        let read = Saved::read(&members_now, &state).unwrap();
        assert_eq!((&*read.result, &read.servers[..]), (RESULT, &servers[..]));
        let links: Vec<_> = read.links.iter().map(|(child, uri)| (*child, &**uri)).collect();
        assert_eq!(links, LINKS);
        for other in [&["a", "b", "c"][..], &["a", "b", "c", "e"], &["a", "b", "c", "d", "e"]] {
            assert_eq!(Saved::read(&members(other), &state), None, "{other:?}");
        }
        let renamed = MemberSettings { prefix: Some("x".to_owned()), ..MemberSettings::default() };
        let plain = MemberSettings::default();
        let renamed =
            Members::new([("a", &renamed), ("b", &plain), ("c", &plain), ("d", &plain)]).unwrap();
        assert_eq!(Saved::read(&renamed, &state), None);
        for cut in 0..state.len() {
            assert_eq!(Saved::read(&members_now, &state.slice(..cut)), None);
        }
        let later = String::from_utf8_lossy(&state).replace("\"format\":1", "\"format\":2");
        assert_eq!(Saved::read(&members_now, &later.into()), None);
    }

    #[test]
    fn nothing_is_saved_if_no_server_has_a_state() {
        let members = members(&["a", "b"]);
        let (state, _) =
            Saved::encode(&members, RESULT, &[&ServerState::Anew, &ServerState::Anew], LINKS);
        assert!(state.is_empty());
    }

    #[test]
    fn states_that_do_not_fit_are_left_out_and_the_others_stay() {
        let members = members(&["a", "b", "c"]);
        let (long, short) = (saved(&[b'x'; 40_000]), saved(b"short"));
        let (state, left_out) = Saved::encode(&members, RESULT, &[&long, &long, &short], []);
        assert_eq!(left_out, [1]);
        assert!(state.len() <= STATE_BYTES_MAX);
        let read = Saved::read(&members, &state).unwrap();
        assert_eq!(read.servers, [long, ServerState::Anew, short]);
    }

    #[test]
    fn the_newest_links_are_kept_within_the_room_that_states_leave() {
        let members = members(&["a", "b"]);
        let uris: Vec<_> =
            (0..500).map(|number| format!("x:/{number}/{}", "\"".repeat(100))).collect();
        let links = || uris.iter().map(|uri| (1, uri.as_str()));
        let kept = |bytes: usize| {
            let long = saved(&vec![b'x'; bytes]);
            let (state, left_out) =
                Saved::encode(&members, RESULT, &[&long, &ServerState::Anew], links());
            assert!(left_out.is_empty() && state.len() <= STATE_BYTES_MAX);
            let read = Saved::read(&members, &state).unwrap();
            assert!(read.links.iter().zip(&uris).all(|((_, kept), uri)| kept == uri));
            read.links.len()
        };
        assert!(kept(10) > 30 && kept(44_000) < kept(10) && kept(44_000) > 0 && kept(47_600) == 0);
    }

    #[test]
    fn a_position_leads_back_to_its_server() {
        for stream in ["", "\"rh-1\"", "a b"] {
            let position = Position { stream: stream.into(), at: "e 1".into() };
            let composed = position_of_catalog(12, &position).unwrap();
            assert_eq!(position_of_server(&composed), Some((12, position)));
        }
        let long = Position { stream: "".into(), at: "x".repeat(Position::BYTES_MAX).into() };
        assert_eq!(position_of_catalog(0, &long), None);
        let other = Position { stream: "".into(), at: "e".into() };
        assert_eq!(position_of_server(&other), None, "of a single server");
    }
}

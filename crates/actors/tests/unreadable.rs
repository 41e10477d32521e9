//! A session whose owner has failed, and whose record or log the next node cannot read.

use std::time::Duration;

use crate::support::nodes::{Common, Node};
use crate::support::{receive_all, text};
use actors::{Answer, Caller, Refusal, ReplyEvent, Settings};
use bytes::Bytes;
use store::{Batch, Expected, Incarnation, Owner, Record, RecordStatus, State};

const TTL: Duration = Duration::from_secs(600);

/// The record or log of a session.
#[derive(Clone, Copy, Debug)]
enum Written {
    State(&'static [u8]),
    Log(&'static [u8]),
}

async fn record(node: &Node, caller: &Caller) -> Record {
    node.store.read(&caller.session).await.unwrap().expect("a record")
}

/// Two of three nodes, and a session with this data. Its owner, the third node, was killed.
async fn left_behind(written: Written, settings: Settings) -> ([Node; 2], Caller) {
    let nodes: [Node; 3] = Common { settings, ..Common::default() }.nodes().await;
    let [mut owner, one, other] = nodes;
    let caller = owner.session_of("2025-11-25").await;
    owner.kill();
    let (session, token) = (caller.session.clone(), record(&one, &caller).await.owner.token);
    match written {
        Written::State(bytes) => {
            let state = State { version: 1_000, bytes: bytes.into() };
            assert_eq!(one.store.save(&session, token, state).await.unwrap(), 1_000);
        }
        Written::Log(entry) => {
            let entries = vec![Bytes::from_static(entry)];
            let batch =
                Batch { session, token, first: 1, floor: 1, entries, ttl: TTL, prolongs: true };
            one.store.append(batch).await.unwrap();
        }
    }
    ([one, other], caller)
}

/// Otherwise its client would retry without end.
#[actix_rt::test]
async fn a_corrupt_session_is_ended_once_and_is_unknown_everywhere() {
    for written in [Written::State(b"{"), Written::Log(b"?")] {
        let (nodes, caller) = left_behind(written, Settings::default()).await;
        let [one, other] = &nodes;
        let (first, second) = (one.call(&caller, 1, "echo"), one.call(&caller, 2, "echo"));
        let unknown = |events: &[ReplyEvent]| {
            matches!(events, [ReplyEvent::Answer(Answer::Refused(Refusal::UnknownSession))])
        };
        for replies in [first, second] {
            let events = receive_all(replies).await;
            assert!(unknown(&events), "{written:?}: {events:?}");
        }
        let ended = record(one, &caller).await;
        assert_eq!(ended.status, RecordStatus::Ended, "{written:?}");
        for node in [other, one] {
            let events = receive_all(node.call(&caller, 3, "echo")).await;
            assert!(unknown(&events), "{written:?}: {events:?}");
        }
        assert_eq!(record(one, &caller).await, ended, "it is not claimed again");
    }
}

/// A node of the version that wrote it can restore it.
#[actix_rt::test]
async fn a_session_of_a_newer_layout_is_held_and_never_ended() {
    let newer = br#"{"format":1000,"initialized":{"since":7}}"#;
    let settings = Settings { hold_ms: 1_000, ..Settings::default() };
    let (nodes, caller) = left_behind(Written::State(newer), settings).await;
    for (node, id) in nodes.iter().zip(1..) {
        let events = receive_all(node.call(&caller, id, "echo")).await;
        let [ReplyEvent::Answer(Answer::Json(json))] = &events[..] else { panic!("{events:?}") };
        assert!(text(json).contains("could not be reached for 1 s"), "{}", text(json));
    }
    let left = record(&nodes[0], &caller).await;
    assert_eq!((left.status, &*left.state.bytes.to_bytes()), (RecordStatus::Released, &newer[..]));
    let heir = Owner { token: left.owner.token.next(7), node: Incarnation(7) };
    let claim = nodes[0].store.claim(&caller.session, Expected::Released, heir, None, TTL);
    assert_eq!(&*claim.await.unwrap().record.state.bytes.to_bytes(), &newer[..]);
}

//! Two nodes: a client may use either, wherever its session is.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    FLOOD, World, final_response, messages, next, occupy_threads_of_long_messages, receive_all,
    refusal, text,
};
use actors::{Answer, Caller, Refusal, ReplyEvent, ReplyStream, Settings};
use backends::LinkEvent;
use bytes::Bytes;
use cluster::Cluster;
use protocol::{Body, Message, Method, Notification, Request};
use rustix::time::{ClockId, clock_gettime};
use store::{Memory, Store};
use tenants::Principal;
use tokio::time::timeout;

/// A node that has joined the cluster of its store.
struct Joined {
    world: World,
    cluster: Cluster,
}

impl std::ops::Deref for Joined {
    type Target = World;
    fn deref(&self) -> &World {
        &self.world
    }
}

async fn node(settings: Settings, store: &Arc<dyn Store>) -> Joined {
    let peers = cluster::Settings {
        listen: "127.0.0.1:0".into(),
        secret: "no secret, only a test of these nodes".into(),
        ..cluster::Settings::default()
    };
    let world = World::joined(settings, Arc::clone(store), peers).await;
    let cluster = world.handle.cluster().clone();
    Joined { world, cluster }
}

/// The node that creates the sessions, and another one.
async fn two() -> (Joined, Joined) {
    two_with(Settings::default()).await
}

async fn two_with(settings: Settings) -> (Joined, Joined) {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    (node(settings.clone(), &store).await, node(settings, &store).await)
}

fn parsed(json: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(json.as_bytes())).unwrap()
}

/// A session of the revision that has batches.
async fn old_session(node: &World) -> Caller {
    let params = br#"{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
    let request = Request::new(0.into(), Method::Initialize, Some(params));
    let opened =
        node.handle.initialize(&node.tenant, &node.principal, request, None).await.unwrap();
    let events = receive_all(opened.replies).await;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Welcome(_))]), "{events:?}");
    let caller = node.caller(&opened.session);
    accepted(node, &caller, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    caller
}

/// Posts a message without a reply.
async fn accepted(node: &World, caller: &Caller, json: &str) {
    let events = receive_all(node.handle.post(caller, Body::One(parsed(json)), None)).await;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Accepted)]), "{events:?}");
}

/// Posts a call that reports progress and sends a server request to the client.
async fn ask(node: &World, caller: &Caller) -> ReplyStream {
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask","_meta":{"progressToken":"t"}}}"#;
    node.handle.post(caller, Body::One(parsed(call)), None)
}

/// Reads until there are `count` messages.
async fn some(replies: &mut ReplyStream, count: usize) -> Vec<ReplyEvent> {
    let mut events = Vec::new();
    while messages(&events).len() < count {
        events.push(next(replies).await.expect("the stream ended"));
    }
    events
}

/// Reads the head of a stream.
async fn opened(replies: &mut ReplyStream) {
    let events = next(replies).await;
    assert!(matches!(events, Some(ReplyEvent::Open { welcome: false, .. })), "{events:?}");
}

#[actix_rt::test]
async fn a_call_is_answered_at_any_node() {
    let (owner, other) = two().await;
    let caller = owner.session().await;
    other.check_call(&caller, 1).await;
    owner.check_call(&caller, 2).await;
    for id in 3..50 {
        other.check_call(&caller, id).await;
    }
    assert_eq!((owner.handle.sessions(), other.handle.sessions()), (1, 0));
}

/// Both nodes' links of peers and the client's node share this thread. It only writes and reads the message, in
/// pieces.
#[actix_rt::test]
async fn a_long_call_of_another_node_is_parsed_by_another_thread() {
    let (owner, other) = two().await;
    let caller = owner.session().await;
    // Short texts, so that parsing takes longer than copying.
    let texts = r#""","#.repeat(2 << 20);
    let json =
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/x","params":{{"t":[{texts}""]}}}}"#);
    let before = time_of_this_thread();
    let message = parsed(&json);
    let parsing = time_of_this_thread() - before;
    // The first call finds the owner.
    other.check_call(&caller, 1).await;
    let before = time_of_this_thread();
    let events = receive_all(other.handle.post(&caller, Body::One(message), None)).await;
    let forwarding = time_of_this_thread() - before;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Accepted)]), "{events:?}");
    assert!(forwarding < parsing, "{forwarding:?}, and {parsing:?} to parse it");
}

#[actix_rt::test]
async fn a_long_call_for_another_node_is_encoded_by_another_thread() {
    let (owner, other) = two().await;
    let caller = owner.session().await;
    other.check_call(&caller, 1).await;
    let busy = occupy_threads_of_long_messages();
    let text = "x".repeat(1 << 20);
    let json =
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/x","params":{{"t":"{text}"}}}}"#);
    let mut replies = other.handle.post(&caller, Body::One(parsed(&json)), None);
    let early = timeout(Duration::from_millis(100), replies.next()).await;
    assert!(early.is_err() && calls_to_other_nodes() == 0.0, "it was encoded here: {early:?}");
    // Others go on meanwhile.
    other.check_call(&caller, 2).await;
    drop(busy);
    let events = receive_all(replies).await;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Accepted)]), "{events:?}");
}

/// How many calls to other nodes of this process are in progress. `cargo nextest` gives each test a process.
fn calls_to_other_nodes() -> f64 {
    let families = prometheus::gather();
    let mut families = families.iter();
    let family = families.find(|family| family.name() == "roundhouse_peer_calls");
    family.expect("the metric").get_metric()[0].get_gauge().get_value()
}

/// A node that no longer has the session starts nothing, and the caller finds the new owner.
#[actix_rt::test]
async fn a_long_call_to_a_former_owner_reaches_the_new_one() {
    let (owner, other) = two().await;
    let caller = owner.session().await;
    other.check_call(&caller, 1).await;
    owner.handle.drain(Duration::from_secs(5)).await;
    let text = "x".repeat(1 << 20);
    let call = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"any","arguments":{{"t":"{text}"}}}}}}"#
    );
    let replies = other.handle.post(&caller, Body::One(parsed(&call)), None);
    let events = receive_all(replies).await;
    assert!(final_response(&events).contains("ok"), "{events:?}");
    assert_eq!(other.handle.sessions(), 1);
}

fn time_of_this_thread() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

#[actix_rt::test]
async fn a_record_names_the_node_that_joined() {
    let (owner, _other) = two().await;
    let caller = owner.session().await;
    let record = owner.store.read(&caller.session).await.unwrap().unwrap();
    assert_eq!(record.owner.node, owner.cluster.incarnation());
}

#[actix_rt::test]
async fn each_node_has_sessions_and_serves_those_of_the_other() {
    let (one, other) = two().await;
    let (here, there) = (one.session().await, other.session().await);
    one.check_call(&there, 1).await;
    other.check_call(&here, 1).await;
    assert_eq!((one.handle.sessions(), other.handle.sessions()), (1, 1));
}

#[actix_rt::test]
async fn a_server_request_on_a_stream_of_one_node_may_be_answered_at_the_other() {
    let (owner, other) = two().await;
    let caller = owner.session().await;
    for (asked, answering) in [(&other, &owner), (&owner, &other)] {
        let mut replies = ask(asked, &caller).await;
        let events = some(&mut replies, 2).await;
        let [(_, progress), (_, question)] = &messages(&events)[..] else { panic!("{events:?}") };
        assert!(progress.contains("notifications/progress") && progress.contains(r#""t""#));
        let Message::Request(question) = parsed(question) else { panic!("{question}") };
        let id = question.id.to_json();
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"roots":[]}}}}"#);
        accepted(answering, &caller, &answer).await;
        let rest = messages(&receive_all(replies).await);
        let [(Some(_), last)] = &rest[..] else { panic!("{rest:?}") };
        assert_eq!(last, r#"{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}"#);
    }
}

#[actix_rt::test]
async fn a_stream_at_another_node_receives_notifications_that_belong_to_no_request() {
    let (owner, other) = two().await;
    let caller = owner.session().await;
    let mut replies = other.handle.listen(&caller, None);
    opened(&mut replies).await;
    let message = Notification::new(Method::ToolsListChanged, None).into();
    let sender = owner.script.senders.lock().unwrap()[0].clone();
    sender.send(LinkEvent::Message { message, about: None }).await.unwrap();
    let events = some(&mut replies, 1).await;
    assert!(messages(&events)[0].1.contains("tools/list_changed"), "{events:?}");
}

#[actix_rt::test]
async fn a_stream_that_began_at_one_node_resumes_at_the_other() {
    let (owner, other) = two().await;
    let caller = owner.session().await;
    for (from, to) in [(&owner, &other), (&other, &owner), (&other, &other)] {
        let mut replies = from.call(&caller, 1, "flood");
        let events = some(&mut replies, 10).await;
        drop(replies);
        let mut seen = messages(&events);
        let after = seen.last().unwrap().0.clone();
        let rest = receive_all(to.handle.listen(&caller, after)).await;
        assert!(!matches!(rest.last(), Some(ReplyEvent::Abort)), "{rest:?}");
        seen.extend(messages(&rest));
        let mut ids: Vec<_> = seen.iter().map(|(id, _)| id.clone().unwrap()).collect();
        assert_eq!(seen.len(), FLOOD + 1, "each event once, and the final response");
        assert!(seen.last().unwrap().1.contains("done"));
        ids.dedup();
        assert_eq!(ids.len(), FLOOD + 1);
    }
}

#[actix_rt::test]
async fn an_unknown_last_event_id_is_refused_at_any_node() {
    let (owner, other) = two().await;
    let caller = owner.session().await;
    for node in [&owner, &other] {
        let after = Some("7.0123456789abcdef-9".to_owned());
        let events = refusal(node.handle.listen(&caller, after)).await;
        assert_eq!(events, Refusal::UnknownEvent);
    }
}

#[actix_rt::test]
async fn a_session_ended_at_another_node_has_ended_at_every_node() {
    let (owner, other) = two().await;
    let caller = owner.session().await;
    other.check_call(&caller, 1).await;
    let events = receive_all(other.handle.delete(&caller)).await;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Ended)]), "{events:?}");
    owner.wait_until_empty().await;
    for node in [&owner, &other] {
        assert_eq!(refusal(node.call(&caller, 2, "echo")).await, Refusal::UnknownSession);
    }
}

#[actix_rt::test]
async fn a_session_is_unknown_to_every_other_principal_and_tenant_at_every_node() {
    let (owner, other) = two().await;
    let caller = owner.session().await;
    let principal = Caller { principal: Principal::named("mallory"), ..caller.clone() };
    let tenant = Caller { tenant: crate::support::tenant("evil", 10), ..caller.clone() };
    for node in [&owner, &other] {
        for foreign in [&principal, &tenant] {
            let refused = refusal(node.call(foreign, 1, "echo")).await;
            assert_eq!(refused, Refusal::UnknownSession);
            let refused = refusal(node.handle.listen(foreign, None)).await;
            assert_eq!(refused, Refusal::UnknownSession);
            let refused = refusal(node.handle.delete(foreign)).await;
            assert_eq!(refused, Refusal::UnknownSession);
        }
        node.check_call(&caller, 2).await;
    }
}

#[actix_rt::test]
async fn an_id_without_a_session_is_unknown_at_every_node() {
    let (owner, other) = two().await;
    let caller = owner.caller(&protocol::SessionId::parse("never-was").unwrap());
    for node in [&owner, &other] {
        assert_eq!(refusal(node.call(&caller, 1, "echo")).await, Refusal::UnknownSession);
    }
}

#[actix_rt::test]
async fn the_owner_is_notified_when_a_client_leaves_another_node() {
    let mut settings = Settings::default();
    settings.session.idle_secs = 1;
    let (owner, other) = two_with(settings).await;
    let caller = owner.session().await;
    let mut replies = other.handle.listen(&caller, None);
    opened(&mut replies).await;
    // A session with a reader is not idle.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(owner.handle.sessions(), 1);
    drop(replies);
    owner.wait_until_empty().await;
}

#[actix_rt::test]
async fn a_call_runs_although_its_caller_leaves_another_node_at_once() {
    let (owner, other) = two().await;
    let caller = owner.session().await;
    other.check_call(&caller, 1).await;
    drop(other.call(&caller, 2, "later"));
    owner.wait_for_requests(2).await;
    owner.script.gate.notify_one();
    owner.check_call(&caller, 3).await;
}

#[actix_rt::test]
async fn a_node_that_stops_gives_clients_of_others_their_final_response() {
    let (owner, other) = two().await;
    let caller = owner.session().await;
    let call = actix_rt::spawn(receive_all(other.call(&caller, 1, "hang")));
    let stream = {
        let mut replies = other.call(&caller, 2, "flood");
        opened(&mut replies).await;
        replies
    };
    owner.wait_for_requests(2).await;
    owner.handle.stop(Duration::from_millis(10)).await;
    let events = call.await.unwrap();
    let response: String = match &events[..] {
        [ReplyEvent::Answer(Answer::Json(json))] => text(json),
        events => messages(events).pop().unwrap().1,
    };
    assert!(response.contains(r#""error""#) && response.contains("\"id\":1"), "{response}");
    let events = receive_all(stream).await;
    assert_eq!(messages(&events).len(), FLOOD + 1);
    other.cluster.leave().await;
    owner.cluster.leave().await;
}

#[actix_rt::test]
async fn a_batch_is_answered_at_any_node() {
    let (owner, other) = two().await;
    let caller = old_session(&owner).await;
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}, 7]"#;
    let batch = protocol::parse(batch.as_bytes().into(), &protocol::Limits::default()).unwrap();
    let mut answers = Vec::new();
    for node in [&owner, &other] {
        let events = receive_all(node.handle.post(&caller, batch.clone(), None)).await;
        let [ReplyEvent::Answer(Answer::Array(array))] = &events[..] else { panic!("{events:?}") };
        answers.push(array.iter().map(text).collect::<Vec<_>>());
    }
    assert_eq!((answers[0].len(), &answers[0]), (2, &answers[1]));
}

#[actix_rt::test]
async fn replies_to_posts_at_another_node_arrive_on_the_connection_of_a_duplex_session() {
    let (owner, other) = two().await;
    let opened = owner.handle.connect(&owner.tenant, &owner.principal).await.unwrap();
    let (caller, mut replies) = (owner.caller(&opened.session), opened.replies);
    let initialize = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}"#;
    accepted(&other, &caller, initialize).await;
    assert!(messages(&some(&mut replies, 1).await)[0].1.contains("protocolVersion"));
    accepted(&other, &caller, initialized).await;
    accepted(&other, &caller, call).await;
    assert!(messages(&some(&mut replies, 1).await)[0].1.contains("\"ok\":true"));
}

#[actix_rt::test]
async fn a_session_whose_node_has_left_is_claimed_by_the_node_that_gets_a_request() {
    let (owner, other) = two().await;
    let caller = owner.session().await;
    other.check_call(&caller, 1).await;
    owner.cluster.leave().await;
    other.check_call(&caller, 2).await;
    assert_eq!(other.handle.sessions(), 1);
    // The former owner no longer acts for the session, and creates no session.
    assert_eq!(owner.initialize().await.err(), Some(Refusal::Unavailable));
    let record = other.store.read(&caller.session).await.unwrap().unwrap();
    assert_eq!(record.owner.node, other.cluster.incarnation());
}

#[actix_rt::test]
async fn a_stream_at_another_node_stays_in_order_however_slowly_it_is_read() {
    let (owner, other) = two().await;
    let caller = owner.session().await;
    let mut replies = other.call(&caller, 1, "flood");
    opened(&mut replies).await;
    owner.check_call(&caller, 2).await;
    let events = receive_all(replies).await;
    let numbers: Vec<_> = messages(&events)
        .iter()
        .filter_map(|(_, message)| {
            let (_, rest) = message.split_once("\"data\":")?;
            rest.trim_end_matches('}').parse::<usize>().ok()
        })
        .collect();
    assert_eq!(numbers, (0..FLOOD).collect::<Vec<_>>());
}

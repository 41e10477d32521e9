//! Tests of what a client's connection receives while owners of its session are lost.

use bytes::Bytes;
use conversation::{Answer, EventId, Frame, OwnerTag, Refusal};
use protocol::Limits;

use super::{RouteState, RouteStep, TakeOverAnswer};
use crate::{ReplyEvent, SessionRequest};

/// An event of a connection.
enum Happens {
    Received(ReplyEvent),
    /// The stream ends in order.
    Ends,
    /// The owner, or the link to it, is lost.
    Lost,
    NotStarted,
    TooLarge,
    GaveUp,
    Leaves,
    /// The store is found to hold the end of the session, or nothing of it.
    Gone,
}
use Happens::{Ends, GaveUp, Gone, Leaves, Lost, NotStarted, TooLarge};

fn post(json: &str) -> SessionRequest {
    let body = protocol::parse(Bytes::copy_from_slice(json.as_bytes()), &Limits::default());
    SessionRequest::Post { body: body.unwrap(), mirrored: None, again: false }
}

fn call() -> SessionRequest {
    post(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}"#)
}

fn batch() -> SessionRequest {
    post(
        r#"[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"x"},
        {"jsonrpc":"2.0","id":"b","method":"ping"}]"#,
    )
}

fn notification() -> SessionRequest {
    post(r#"{"jsonrpc":"2.0","method":"x"}"#)
}

fn listen() -> SessionRequest {
    SessionRequest::Listen { after: None }
}

fn id(number: u64) -> EventId {
    EventId { stream: 4, owner_tag: OwnerTag(10), number }
}

fn open(at: Option<u64>) -> Happens {
    Happens::Received(ReplyEvent::Open { welcome: false, at: at.map(id) })
}

fn cursor(at: u64) -> Happens {
    Happens::Received(ReplyEvent::Frame(Frame::Cursor { id: id(at), retry: 2_000 }))
}

fn event(number: u64) -> Happens {
    received(Some(number), r#"{"jsonrpc":"2.0","method":"notifications/message"}"#)
}

fn final_response(number: u64, request: &str) -> Happens {
    received(Some(number), &format!(r#"{{"jsonrpc":"2.0","id":{request},"result":{{}}}}"#))
}

fn received(number: Option<u64>, json: &str) -> Happens {
    let data = Bytes::copy_from_slice(json.as_bytes());
    Happens::Received(ReplyEvent::Frame(Frame::Message { id: number.map(id), data }))
}

fn refused(refusal: Refusal) -> Happens {
    Happens::Received(ReplyEvent::Answer(Answer::Refused(refusal)))
}

fn moved() -> Happens {
    Happens::Received(ReplyEvent::Moved)
}

/// The step, in a few words; for a search with the request that is sent.
fn words(route: &RouteState, next: RouteStep) -> String {
    let in_words = |event: &ReplyEvent| match event {
        ReplyEvent::Answer(Answer::Json(json)) => format!("json {}", error_of(json)),
        ReplyEvent::Answer(Answer::Array(array)) => {
            format!("array {}", array.iter().map(error_of).collect::<Vec<_>>().join(" "))
        }
        ReplyEvent::Answer(Answer::Refused(refusal)) => format!("refused {refusal:?}"),
        ReplyEvent::Answer(answer) => format!("{answer:?}").to_lowercase(),
        ReplyEvent::Open { .. } => "open".into(),
        ReplyEvent::Frame(Frame::Message { id: Some(id), .. }) => format!("event {}", id.number),
        ReplyEvent::Frame(Frame::Message { id: None, data }) if !has_error(data) => "event".into(),
        ReplyEvent::Frame(Frame::Message { id: None, data }) => format!("event {}", error_of(data)),
        ReplyEvent::Frame(Frame::Cursor { id, .. }) => format!("cursor {}", id.number),
        ReplyEvent::Frame(frame) => format!("{frame:?}").to_lowercase(),
        ReplyEvent::Abort => "abort".into(),
        event @ (ReplyEvent::Moved | ReplyEvent::LeaseLost { .. }) => {
            panic!("{event:?} is for nodes, not clients")
        }
    };
    match next {
        RouteStep::Forward(one) => in_words(&one),
        RouteStep::AwaitOwner => "nothing".into(),
        RouteStep::Locate => format!("seek {}", request(route)),
        RouteStep::LocateLater => "wait".into(),
        RouteStep::Finish(rest) => {
            let all: Vec<_> = rest.iter().map(in_words).chain(["end".into()]).collect();
            all.join(", ")
        }
    }
}

fn request(route: &RouteState) -> String {
    match route.request() {
        SessionRequest::Post { again: true, .. } => "again".into(),
        SessionRequest::Post { again: false, .. } => "post".into(),
        SessionRequest::Listen { after: None } => "listen".into(),
        SessionRequest::Listen { after: Some(after) } => {
            format!("after {}", EventId::parse(after).unwrap().number)
        }
        SessionRequest::Delete => "delete".into(),
    }
}

fn has_error(json: &Bytes) -> bool {
    serde_json::from_slice::<serde_json::Value>(json).unwrap().get("error").is_some()
}

fn error_of(json: &Bytes) -> String {
    let value: serde_json::Value = serde_json::from_slice(json).unwrap();
    assert_eq!(value["error"]["code"], -32000, "{value}");
    format!("error of {}", value["id"])
}

#[track_caller]
fn check(request: SessionRequest, scenario: impl IntoIterator<Item = (Happens, &'static str)>) {
    let mut route = RouteState::new(request);
    for (at, (happens, expected)) in scenario.into_iter().enumerate() {
        let next = match happens {
            Happens::Received(event) => route.reply_received(event),
            Ends => route.stream_ended(),
            Lost => route.owner_lost(),
            NotStarted => route.not_started(),
            TooLarge => route.message_too_large(1_000),
            GaveUp => RouteStep::Finish(route.hold_time_over(25)),
            Gone => route.session_gone(),
            Leaves => route.node_leaves(700).map_or(RouteStep::AwaitOwner, RouteStep::Finish),
        };
        assert_eq!(words(&route, next), expected, "at {at}");
    }
}

#[test]
fn what_was_certainly_not_done_is_asked_for_as_it_was() {
    for happens in [NotStarted, refused(Refusal::Moved)] {
        check(call(), [(happens, "seek post")]);
    }
    check(batch(), [(NotStarted, "seek post"), (refused(Refusal::Moved), "seek post")]);
    check(listen(), [(refused(Refusal::Moved), "seek listen")]);
    check(SessionRequest::Delete, [(NotStarted, "seek delete")]);
}

#[test]
fn what_may_have_been_done_is_asked_for_as_such() {
    check(call(), [(Lost, "seek again"), (NotStarted, "seek again"), (moved(), "seek again")]);
    check(notification(), [(Lost, "seek again")]);
    check(listen(), [(Lost, "seek listen")]);
    check(SessionRequest::Delete, [(moved(), "seek delete")]);
}

#[test]
fn a_session_that_a_lost_owner_may_have_ended_is_not_unknown_to_its_client() {
    let unknown = || refused(Refusal::UnknownSession);
    check(SessionRequest::Delete, [(unknown(), "refused UnknownSession, end")]);
    check(
        SessionRequest::Delete,
        [(Lost, "seek delete"), (unknown(), "seek delete"), (Gone, "ended, end")],
    );
    check(
        SessionRequest::Delete,
        [(NotStarted, "seek delete"), (Gone, "refused UnknownSession, end")],
    );
    check(SessionRequest::Delete, [(Lost, "seek delete"), (Gone, "ended, end")]);
    check(call(), [(Lost, "seek again"), (Gone, "refused UnknownSession, end")]);
    // It belongs to another client.
    check(
        SessionRequest::Delete,
        [
            (Lost, "seek delete"),
            (unknown(), "seek delete"),
            (unknown(), "refused UnknownSession, end"),
        ],
    );
}

#[test]
fn a_batch_that_may_have_been_done_in_part_ends_with_errors() {
    check(batch(), [(Lost, "array error of 1 error of \"b\", end")]);
}

#[test]
fn a_stream_continues_after_the_last_forwarded_event_and_its_head_is_forwarded_once() {
    check(
        call(),
        [
            (open(Some(4)), "open"),
            (cursor(4), "cursor 4"),
            (event(5), "event 5"),
            (event(6), "event 6"),
            (Lost, "seek after 6"),
            (NotStarted, "seek after 6"),
            (open(Some(6)), "nothing"),
            (cursor(6), "nothing"),
            (event(9), "event 9"),
            (moved(), "seek after 9"),
            (open(Some(9)), "nothing"),
            (final_response(10, "1"), "event 10"),
            (Ends, "end"),
        ],
    );
}

#[test]
fn a_cursor_that_did_not_pass_before_the_owner_was_lost_passes_from_the_next() {
    check(
        listen(),
        [
            (open(Some(4)), "open"),
            (Lost, "seek after 4"),
            (open(Some(4)), "nothing"),
            (cursor(4), "cursor 4"),
            (Lost, "seek after 4"),
            (open(Some(4)), "nothing"),
            (cursor(4), "nothing"),
        ],
    );
}

#[test]
fn a_stream_of_which_only_the_end_is_lost_has_ended() {
    let passed = || [(open(Some(4)), "open"), (final_response(5, "1"), "event 5")];
    check(call(), passed().into_iter().chain([(Lost, "end")]));
    check(batch(), passed().into_iter().chain([(Lost, "seek after 5")]));
}

#[test]
fn a_second_final_response_from_the_next_owner_does_not_pass() {
    let lost = |id: &str| {
        let error = r#""error":{"code":-32603,"message":"messages were lost"}"#;
        received(None, &format!(r#"{{"jsonrpc":"2.0","id":{id},{error}}}"#))
    };
    check(
        SessionRequest::Listen { after: Some(id(4).to_string()) },
        [
            (open(Some(4)), "open"),
            (event(5), "event 5"),
            (final_response(6, "1"), "event 6"),
            (Lost, "seek after 6"),
            (open(None), "nothing"),
            (lost("1"), "nothing"),
            // It is resumed after what was forwarded.
            (Lost, "seek after 6"),
            (final_response(9, "\"b\""), "event 9"),
            (Ends, "end"),
        ],
    );
}

#[test]
fn what_a_batch_is_answered_beside_its_requests_passes() {
    // A member that is no request, and two members of one id.
    check(
        batch(),
        [
            (open(Some(4)), "open"),
            (final_response(5, "7"), "event 5"),
            (final_response(6, "1"), "event 6"),
            (final_response(7, "1"), "event 7"),
            (final_response(8, "\"b\""), "event 8"),
            (Ends, "end"),
        ],
    );
}

#[test]
fn a_stream_of_no_log_cannot_go_on() {
    let unnumbered = || received(None, r#"{"jsonrpc":"2.0","method":"notifications/message"}"#);
    check(call(), [(open(None), "open"), (unnumbered(), "event"), (Lost, "event error of 1, end")]);
    check(listen(), [(open(None), "open"), (unnumbered(), "event"), (moved(), "abort, end")]);
    check(batch(), [(open(None), "open"), (Lost, "event error of 1, event error of \"b\", end")]);
}

#[test]
fn a_client_that_got_a_message_without_an_id_does_not_get_it_again() {
    let result = || received(None, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    let unnumbered = || received(None, r#"{"jsonrpc":"2.0","method":"notifications/message"}"#);
    let opened = || (open(Some(4)), "open");
    check(call(), [opened(), (unnumbered(), "event"), (Lost, "event error of 1, end")]);
    check(call(), [opened(), (unnumbered(), "event"), (result(), "event"), (Lost, "end")]);
    // An event with an id follows the message without one.
    check(
        call(),
        [opened(), (unnumbered(), "event"), (event(9), "event 9"), (Lost, "seek after 9")],
    );
}

#[test]
fn a_head_without_an_id_does_not_prevent_a_repeated_request() {
    let json = || {
        let result = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"x"}}"#;
        Happens::Received(ReplyEvent::Answer(Answer::Json(Bytes::from_static(result))))
    };
    check(call(), [(open(None), "open"), (Lost, "seek again"), (json(), "event error of 1, end")]);
    check(
        call(),
        [
            (open(None), "open"),
            (Lost, "seek again"),
            (open(Some(4)), "nothing"),
            (cursor(4), "cursor 4"),
            (Lost, "seek after 4"),
        ],
    );
    check(call(), [(open(None), "open"), (Lost, "seek again"), (GaveUp, "event error of 1, end")]);
    check(listen(), [(open(None), "open"), (moved(), "seek listen"), (GaveUp, "abort, end")]);
}

#[test]
fn a_resumed_stream_whose_end_was_lost_ends() {
    check(
        SessionRequest::Listen { after: Some(id(4).to_string()) },
        [
            (open(Some(4)), "open"),
            (final_response(5, "1"), "event 5"),
            (Lost, "seek after 5"),
            (refused(Refusal::NothingMore), "end"),
        ],
    );
}

#[test]
fn an_unknown_stream_ends_with_an_error_for_each_pending_request() {
    for gone in [Refusal::UnknownEvent, Refusal::UnknownSession] {
        check(
            call(),
            [
                (open(Some(4)), "open"),
                (event(5), "event 5"),
                (Lost, "seek after 5"),
                (refused(gone.clone()), "event error of 1, end"),
            ],
        );
        check(
            batch(),
            [
                (open(Some(4)), "open"),
                (final_response(5, "1"), "event 5"),
                (Lost, "seek after 5"),
                (refused(gone.clone()), "event error of \"b\", end"),
            ],
        );
        check(
            listen(),
            [
                (open(Some(4)), "open"),
                (Lost, "seek after 4"),
                (refused(gone.clone()), "abort, end"),
            ],
        );
    }
}

#[test]
fn a_crowd_is_an_error_for_requests_and_a_wait_for_the_rest() {
    check(call(), [(refused(Refusal::Busy), "json error of 1, end")]);
    check(batch(), [(refused(Refusal::Busy), "array error of 1 error of \"b\", end")]);
    for request in [notification(), listen(), SessionRequest::Delete] {
        check(request, [(refused(Refusal::Busy), "wait")]);
    }
    check(
        call(),
        [(open(Some(4)), "open"), (Lost, "seek after 4"), (refused(Refusal::Busy), "wait")],
    );
}

#[test]
fn other_answers_pass_as_they_are() {
    check(call(), [(refused(Refusal::UnknownSession), "refused UnknownSession, end")]);
    check(
        notification(),
        [(Happens::Received(ReplyEvent::Answer(Answer::Accepted)), "accepted, end")],
    );
    check(listen(), [(refused(Refusal::NothingMore), "refused NothingMore, end")]);
    check(call(), [(open(Some(4)), "open"), (Happens::Received(ReplyEvent::Abort), "abort, end")]);
}

#[test]
fn what_is_too_large_to_be_carried_ends_with_an_error_and_is_not_asked_again() {
    check(call(), [(TooLarge, "json error of 1, end")]);
    check(batch(), [(TooLarge, "array error of 1 error of \"b\", end")]);
    check(
        call(),
        [(open(Some(4)), "open"), (event(5), "event 5"), (TooLarge, "event error of 1, end")],
    );
    check(listen(), [(open(Some(4)), "open"), (TooLarge, "abort, end")]);
    let mut route = RouteState::new(notification());
    let RouteStep::Finish(events) = route.message_too_large(1_000) else {
        panic!("it should be over")
    };
    let [ReplyEvent::Answer(Answer::Refused(Refusal::Rejected(rejection)))] =
        &Vec::from(events)[..]
    else {
        panic!("it should be refused")
    };
    assert!(rejection.message.contains("cluster.message_bytes_max is 1000 bytes"));
}

#[test]
fn a_node_that_was_asked_to_take_the_session_up_had_not_the_request() {
    let asked = |answer: Option<Answer>| {
        let mut route = RouteState::new(call());
        match route.take_over_answered(answer) {
            TakeOverAnswer::IsOwner => "there".into(),
            TakeOverAnswer::Step(next) => words(&route, next),
        }
    };
    assert_eq!(asked(Some(Answer::Nothing)), "there");
    // Unchanged, not marked as one that may have been begun.
    assert_eq!(asked(None), "seek post");
    assert_eq!(asked(Some(Answer::Refused(Refusal::Moved))), "seek post");
    let unknown = Answer::Refused(Refusal::UnknownSession);
    assert_eq!(asked(Some(unknown)), "refused UnknownSession, end");
}

#[test]
fn a_node_without_room_is_not_the_last_one_that_is_asked() {
    let full = Answer::Refused(Refusal::TooManySessions);
    let mut route = RouteState::new(call());
    assert!(matches!(
        route.take_over_answered(Some(full)),
        TakeOverAnswer::Step(RouteStep::LocateLater)
    ));
    let events = Vec::from(route.hold_time_over(25));
    let [ReplyEvent::Answer(Answer::Json(json))] = &events[..] else { panic!("{events:?}") };
    assert!(String::from_utf8_lossy(json).contains("sessions.sessions_max"));
}

#[test]
fn whoever_waited_for_too_long_gets_an_answer_that_it_can_use() {
    check(call(), [(GaveUp, "json error of 1, end")]);
    check(batch(), [(GaveUp, "array error of 1 error of \"b\", end")]);
    for request in [notification(), listen(), SessionRequest::Delete] {
        check(request, [(GaveUp, "refused Unavailable, end")]);
    }
    for request in [call(), listen()] {
        check(request, [(open(Some(4)), "open"), (Lost, "seek after 4"), (GaveUp, "abort, end")]);
    }
}

#[test]
fn a_node_that_leaves_ends_streams_that_clients_resume() {
    for request in [call(), listen()] {
        let opened = [(open(Some(4)), "open"), (cursor(4), "cursor 4")];
        let leaves = [(Leaves, "retry(700), end")];
        check(request, opened.into_iter().chain(leaves));
    }
    check(listen(), [(open(Some(4)), "open"), (event(5), "event 5"), (Leaves, "abort, end")]);
}

#[test]
fn a_node_that_leaves_lets_end_by_itself_what_its_client_would_not_come_back_to() {
    check(call(), [(Leaves, "nothing")]);
    check(call(), [(open(Some(4)), "open"), (event(5), "event 5"), (Leaves, "nothing")]);
    check(listen(), [(open(None), "open"), (Leaves, "nothing")]);
}

#[test]
fn a_request_whose_owner_stays_without_a_lease_ends_with_an_error() {
    let lost = || Happens::Received(ReplyEvent::LeaseLost { held_secs: 25 });
    check(call(), [(lost(), "json error of 1, end")]);
    check(batch(), [(lost(), "array error of 1 error of \"b\", end")]);
    for other in [notification(), listen()] {
        check(other, [(lost(), "refused Unavailable, end")]);
    }
    // An open stream continues at another owner.
    check(call(), [(open(Some(4)), "open"), (cursor(4), "cursor 4"), (lost(), "seek after 4")]);
}

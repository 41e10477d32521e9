//! The stream of each message, and the messages that a client receives when it resumes a stream.

use crate::world::{NEW, World, cursor, live};
use conversation::{Answer, EventId, Frame, Limits, Refusal};
use protocol::{Method, Notification};

// holds: POST-10, POST-12
#[test]
fn a_quick_answer_is_json_and_costs_no_log() {
    let mut world = live();
    let sink = world.call(1);
    world.answer(1, "quick");
    assert!(matches!(world.connections[&sink].answer, Some(Answer::Json(_))));
    assert_eq!(world.appended, 0);
}

// holds: POST-11, SSE-04, SSE-05, PRG-03
#[test]
fn progress_makes_the_answer_a_primed_stream_that_ends_with_the_response() {
    let mut world = live();
    let sink = world.call(1);
    world.progress(1, 1);
    world.progress(1, 2);
    world.answer(1, "done");
    assert_eq!(world.gist(sink), ["progress 1", "progress 2", "1 result"]);
    let connection = &world.connections[&sink];
    assert!(matches!(connection.frames[0], Frame::Cursor { retry: 1_500..=2_500, .. }));
    assert!(connection.finished);
}

// holds: SSE-04
#[test]
fn older_revisions_are_not_primed() {
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18"] {
        let mut world = World::live(revision, Limits::default());
        let sink = world.call(1);
        world.progress(1, 1);
        world.answer(1, "done");
        let cursors = world.connections[&sink].frames.iter();
        assert_eq!(cursors.filter(|frame| matches!(frame, Frame::Cursor { .. })).count(), 0);
        assert_eq!(world.gist(sink), ["progress 1", "1 result"]);
    }
}

#[test]
fn a_silent_call_becomes_a_stream_in_time() {
    let mut world = live();
    let sink = world.call(1);
    world.wait(249);
    assert!(!world.connections[&sink].open);
    world.wait(1);
    assert!(world.connections[&sink].open);

    let mut old = World::live("2025-06-18", Limits::default());
    let sink = old.call(1);
    old.wait(14_999);
    assert!(!old.connections[&sink].open);
    old.wait(1);
    assert_eq!(old.connections[&sink].frames, [Frame::KeepAlive]);
}

// holds: SSE-07, POST-16, SSE-11
#[test]
fn a_stream_cut_in_mid_call_goes_on_where_it_was_cut() {
    let mut world = live();
    let first = world.call(1);
    world.progress(1, 1);
    let cut_at = cursor(&world, first);
    world.hang_up(first);
    world.progress(1, 2);
    let second = world.listen(Some(cut_at));
    world.progress(1, 3);
    world.answer(1, "done");
    assert_eq!(world.gist(second), ["progress 2", "progress 3", "1 result"]);
    assert!(world.connections[&second].finished);
    let third = world.listen(Some(cut_at));
    assert_eq!(world.gist(third), world.gist(second), "a second resume returns the same messages");
}

#[test]
fn a_resumed_stream_begins_with_its_own_cursor() {
    let mut world = live();
    let first = world.call(1);
    world.progress(1, 1);
    let cut_at = cursor(&world, first);
    world.hang_up(first);
    let second = world.listen(Some(cut_at));
    world.hang_up(second);
    assert!(
        matches!(world.connections[&second].frames[0], Frame::Cursor { id, .. } if id == cut_at)
    );
    let third = world.listen(Some(cursor(&world, second)));
    world.answer(1, "done");
    assert_eq!(world.gist(third), ["1 result"]);
}

// holds: SSE-11
#[test]
fn nothing_comes_after_the_last_event_of_a_finished_stream() {
    let mut world = live();
    let sink = world.call(1);
    world.progress(1, 1);
    world.answer(1, "done");
    let end = cursor(&world, sink);
    let again = world.listen(Some(end));
    assert_eq!(*world.refusal(again), Refusal::NothingMore);
}

// holds: SSE-08, SSE-10
#[test]
fn an_id_of_no_event_or_of_another_session_is_refused() {
    let mut world = live();
    let sink = world.call(1);
    world.progress(1, 1);
    let id = cursor(&world, sink);
    let other_call = world.call(2);
    world.progress(2, 5);
    let other = cursor(&world, other_call);
    let foreign = EventId { owner_tag: conversation::OwnerTag(1), ..id };
    let crossed = EventId { number: other.number, ..id };
    let future = EventId { number: 999, ..id };
    for wrong in [foreign, crossed, future] {
        let sink = world.listen(Some(wrong));
        assert_eq!(*world.refusal(sink), Refusal::UnknownEvent);
    }
}

#[test]
fn a_newer_resume_displaces_the_older_one() {
    let mut world = live();
    let first = world.call(1);
    world.progress(1, 1);
    let second = world.listen(Some(cursor(&world, first)));
    assert!(world.connections[&first].finished);
    world.answer(1, "done");
    assert_eq!(world.gist(second), ["1 result"]);
}

#[test]
fn what_was_trimmed_ends_its_request_with_an_error_and_is_never_skipped() {
    let limits = Limits { log_events_max: 4, ..Limits::default() };
    let mut world = World::live(NEW, limits);
    let first = world.call(1);
    world.progress(1, 1);
    let cut_at = cursor(&world, first);
    world.hang_up(first);
    for progress in 2..10 {
        world.progress(1, progress);
    }
    let second = world.listen(Some(cut_at));
    assert_eq!(world.gist(second), ["1 error -32603"]);
    assert!(world.connections[&second].finished);
    assert_eq!(world.sent_methods().last().unwrap(), "notifications/cancelled");
}

#[test]
fn a_trimmed_standalone_stream_continues_and_notifies_what_to_list_again() {
    let limits = Limits { log_events_max: 3, ..Limits::default() };
    let mut world = World::live(NEW, limits);
    let first = world.listen(None);
    let cut_at = cursor(&world, first);
    for _ in 0..6 {
        world.send_from_server(Notification::new(Method::PromptsListChanged, None));
    }
    world.hang_up(first);
    let second = world.listen(Some(cut_at));
    let gist = world.gist(second);
    assert!(gist.contains(&"notifications/tools/list_changed".to_owned()), "{gist:?}");
    assert!(!world.connections[&second].finished);
}

#[test]
fn a_standalone_stream_that_was_trimmed_and_closed_is_replaced_as_often_as_it_is_resumed() {
    let limits = Limits { log_events_max: 3, ..Limits::default() };
    let mut world = World::live(NEW, limits);
    let first = world.listen(None);
    let cut_at = cursor(&world, first);
    world.send_from_server(Notification::new(Method::PromptsListChanged, None));
    world.hang_up(first);
    // The oldest of many streams that no client listens to is closed.
    for _ in 0..8 {
        let other = world.listen(None);
        world.hang_up(other);
    }
    for _ in 0..3 {
        let again = world.listen(Some(cut_at));
        assert_eq!(world.gist(again), ["notifications/tools/list_changed"]);
        let connection = &world.connections[&again];
        assert!(!connection.finished && connection.at.unwrap().stream > cut_at.stream);
    }
}

// holds: SSE-02
#[test]
fn nothing_with_an_id_is_told_before_the_log_holds_it() {
    let mut world = live();
    world.prompt_log = false;
    let sink = world.call(1);
    world.progress(1, 1);
    world.answer(1, "done");
    assert!(!world.connections[&sink].open);
    world.acknowledge();
    assert_eq!(world.gist(sink), ["progress 1", "1 result"]);
}

// holds: SSE-01, GET-09, GET-05
#[test]
fn each_message_goes_to_one_stream_the_newest_standalone_one() {
    let mut world = live();
    let (older, newer) = (world.listen(None), world.listen(None));
    for _ in 0..3 {
        world.send_from_server(Notification::new(Method::ToolsListChanged, None));
    }
    assert_eq!(world.gist(older), Vec::<String>::new());
    assert_eq!(world.gist(newer).len(), 3);
}

// holds: POST-14, GET-04
#[test]
fn list_changes_never_go_with_an_answer_nor_answers_on_a_standalone_stream() {
    let mut world = live();
    let standalone = world.listen(None);
    let call = world.call(1);
    world.progress(1, 1);
    world.send_from_server(Notification::new(Method::ToolsListChanged, None));
    world.answer(1, "done");
    assert_eq!(world.gist(call), ["progress 1", "1 result"]);
    assert_eq!(world.gist(standalone), ["notifications/tools/list_changed"]);
}

#[test]
fn messages_without_a_listening_client_wait_for_the_next_one() {
    let mut world = live();
    world.send_from_server(Notification::new(Method::ToolsListChanged, None));
    let sink = world.listen(None);
    assert_eq!(world.gist(sink), ["notifications/tools/list_changed"]);
}

#[test]
fn beyond_the_bound_the_standalone_stream_idle_longest_is_closed() {
    let mut world = live();
    let sinks: Vec<_> = (0..4).map(|_| world.listen(None)).collect();
    world.wait(10);
    world.send_from_server(Notification::new(Method::ToolsListChanged, None));
    let fifth = world.listen(None);
    assert!(world.connections[&sinks[0]].finished);
    assert!(!world.connections[&sinks[3]].finished && !world.connections[&fifth].finished);
}

// holds: SSE-05, POST-13, GET-07
#[test]
fn an_old_connection_is_told_when_to_come_back_and_ends() {
    let mut world = World::live(NEW, Limits { stream_secs: 5, ..Limits::default() });
    let first = world.call(1);
    world.wait(5_250);
    let connection = &world.connections[&first];
    assert!(connection.finished);
    assert!(matches!(connection.frames.last(), Some(Frame::Retry(_))));
    world.answer(1, "done");
    let second = world.listen(Some(cursor(&world, first)));
    assert_eq!(world.gist(second), ["1 result"]);
}

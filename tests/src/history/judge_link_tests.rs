//! The permitted observations after the link between two running nodes broke, or a server of a catalog ended.

use super::super::SERVER_ENDS;
use super::*;

#[test]
fn a_result_may_come_alone_where_the_link_broke_before_anything_was_written() {
    let partition = What::Fault { node: None, what: "partition", process: 0 };
    let alone = |id: Option<&str>| What::FinalResponse {
        on: "a".into(),
        id: id.map(Into::into),
        of: "a".into(),
        is_error: false,
        text: String::new(),
    };
    check([sent("a"), partition.clone(), alone(None), ran("a", 7)], &[]);
    // An error: the response is on a stream, whose events are in the log. Also if no link broke.
    check([sent("a"), partition.clone(), alone(Some("1.x-2")), ran("a", 7)], &["lost"]);
    check([sent("a"), alone(None), ran("a", 7)], &["lost"]);
    // Also in the middle of the progress.
    let lines = [sent("a"), progress("1.x-2", 1), partition, alone(None), ran("a", 7)];
    check(lines, &["lost"]);
}

#[test]
fn a_stream_may_begin_late_where_the_link_broke_before_anything_was_written() {
    let partition = || What::Fault { node: None, what: "partition", process: 0 };
    let late = [progress("1.x-2", 2), final_response("1.x-3"), ran("a", 7)];
    check([sent("a"), partition()].into_iter().chain(late.clone()), &[]);
    // An error if no link broke, in the middle of the progress, and at its end.
    check([sent("a")].into_iter().chain(late), &["lost"]);
    let asked = Asked { count: 3, ..COUNTED };
    let sent = || What::Sent { key: "a".into(), asked };
    let middle = [progress("1.x-2", 1), partition(), progress("1.x-3", 3), final_response("1.x-4")];
    check([sent()].into_iter().chain(middle).chain([ran("a", 7)]), &["lost"]);
    let end = [partition(), progress("1.x-2", 2), final_response("1.x-3"), ran("a", 7)];
    check([sent()].into_iter().chain(end), &["lost"]);
}

#[test]
fn an_error_may_come_where_a_link_broke_that_had_just_taken_a_call_and_answered_nothing() {
    let partition = || What::Fault { node: None, what: "partition", process: 0 };
    let (on, of, text) = ("a".to_owned(), "a".to_owned(), "lost".to_owned());
    let failed = What::FinalResponse { on, id: None, of, is_error: true, text };
    let lines = |asked| vec![What::Sent { key: "a".into(), asked }, failed.clone(), ran("a", 7)];
    let cut = |asked| [vec![partition()], lines(asked)].concat();
    check(cut(COUNTED), &[]);
    check(cut(Asked { may_rerun: true, ..COUNTED }), &["error"]);
    check(lines(COUNTED), &["error"]);
    // The silence was detected before the call came.
    let mut late = history(cut(COUNTED));
    pass(&mut late, 1, 2_000);
    check_entries(&late, &["error"]);
}

#[test]
fn an_error_may_come_where_a_stopped_node_ran_again_and_had_not_read_the_end_of_its_links() {
    let stop = |ms| {
        let mut lines = history([
            fault(1, "SIGSTOP", 9),
            fault(1, "SIGCONT", 9),
            sent("a"),
            error("1.x-2"),
            ran("a", 2),
        ]);
        pass(&mut lines, 1, ms);
        lines
    };
    check_entries(&stop(1_500), &[]);
    // Too short to break a link.
    check_entries(&stop(500), &["error"]);
    let mut late = stop(1_500);
    pass(&mut late, 2, 400);
    check_entries(&late, &["error"]);
}

#[test]
fn a_question_may_come_on_the_get_stream_where_the_link_broke_before_its_call_had_a_stream() {
    let sent = |asks| What::Sent { key: "a".into(), asked: Asked { asks, count: 0, ..COUNTED } };
    let listens = || What::Listens { on: "l".into(), node: 0 };
    let question_of = |of: &str, on: &str| What::Event {
        on: on.into(),
        id: Some(if on == "l" { "0.x-1".into() } else { "1.x-2".into() }),
        content: Content::Question { of: of.into(), id: "1".into() },
    };
    let question = || question_of("a", "l");
    let stop = || [fault(1, "SIGSTOP", 9), fault(1, "SIGCONT", 9)];
    let end = || [final_response("1.x-9"), ran("a", 9)];
    // The node is stopped for so long.
    let of = |stopped_ms, lines: Vec<What>| {
        let continued = lines.iter().position(|line| *line == stop()[1]).unwrap_or_default();
        let mut lines = history([listens()].into_iter().chain(lines));
        pass(&mut lines, continued + 1, stopped_ms);
        lines
    };
    let asked = || {
        let lines = [sent(true)].into_iter().chain(stop()).chain([question()]).chain(end());
        lines.collect::<Vec<_>>()
    };
    check_entries(&of(700, asked()), &[]);
    // Too short to break a link.
    check_entries(&of(500, asked()), &["wrong stream"]);
    // Long after the link was up again.
    let mut late = of(700, asked());
    pass(&mut late, 4, 6_000);
    check_entries(&late, &["wrong stream"]);
    // The link broke before the call.
    let mut before =
        of(700, [stop().to_vec(), vec![sent(true), question()], end().to_vec()].concat());
    pass(&mut before, 3, 1_000);
    check_entries(&before, &["wrong stream"]);
    // The call had a stream, or is no call that asks.
    let own = [vec![sent(true), question_of("a", "a")], stop().to_vec(), vec![question()]].concat();
    check_entries(&of(700, [own, end().to_vec()].concat()), &["wrong stream"]);
    let quiet = [vec![sent(false)], stop().to_vec(), vec![question()], end().to_vec()].concat();
    check_entries(&of(700, quiet), &["wrong stream"]);
    let other = [vec![sent(true)], stop().to_vec(), vec![question_of("b", "l")], end().to_vec()];
    check_entries(&of(700, other.concat()), &["wrong stream"]);
    // The call had its result.
    let over = [vec![sent(true)], stop().to_vec(), end().to_vec(), vec![question()]].concat();
    check_entries(&of(700, over), &["wrong stream"]);
}

/// A call ends in an error with this text, before or while a server of a catalog ends.
fn failed_with(text: &str, meanwhile: impl IntoIterator<Item = What>) -> Vec<What> {
    let mut lines = vec![sent("a"), progress("1.x-2", 1), ran("a", 9)];
    lines.extend(meanwhile);
    let (on, of) = ("a".into(), "a".into());
    let (id, text) = (Some("1.x-3".into()), text.into());
    lines.push(What::FinalResponse { on, id, of, is_error: true, text });
    lines
}

#[test]
fn an_error_of_a_server_that_ended_names_it_and_its_call_still_runs_once() {
    let ends = || What::Fault { node: None, what: SERVER_ENDS, process: 0 };
    let named = "the server `prog` ended while it worked on this";
    check(failed_with(named, [ends()]), &[]);
    check(failed_with(named, []), &["error"]);
    check(failed_with("it failed", [ends()]), &["error"]);
    check(failed_with(named, [ends(), ran("a", 10)]), &["ran twice"]);
}

/// A call that came just after its owner had stopped may not have begun.
#[test]
fn an_error_may_come_where_a_stop_broke_the_link_of_a_call_that_had_no_answer() {
    for (ms, rules) in [(1_500, &[][..]), (650, &[]), (500, &["error"])] {
        let (on, of, text) = ("a".to_owned(), "a".to_owned(), "lost".to_owned());
        let failed = What::FinalResponse { on, id: None, of, is_error: true, text };
        let stopped = [fault(0, "SIGSTOP", 7), What::Sent { key: "a".into(), asked: COUNTED }];
        let lines = stopped.into_iter().chain([fault(0, "SIGCONT", 7), failed, ran("a", 7)]);
        let mut entries = history(lines);
        pass(&mut entries, 2, ms);
        check_entries(&entries, rules);
    }
}

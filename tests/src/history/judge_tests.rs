//! Histories that may happen, and histories that break each rule.

use super::super::{Asked, Content, Entry, What};
use super::{Figures, Silences, Verdict, judge};

#[path = "judge_link_tests.rs"]
mod links;

const COUNTED: Asked = Asked {
    count: 2,
    asks: false,
    announces: false,
    is_recorded: true,
    may_rerun: false,
    is_quiet: false,
};

fn history(lines: impl IntoIterator<Item = What>) -> Vec<Entry> {
    let lines = lines.into_iter().enumerate();
    lines.map(|(at, what)| Entry { at: at as u64, session: "s".into(), what }).collect()
}

fn sent(key: &str) -> What {
    What::Sent { key: key.into(), asked: COUNTED }
}

fn progress(id: &str, number: u64) -> What {
    of("a", id, number)
}

fn of(whose: &str, id: &str, number: u64) -> What {
    let content = Content::Progress { of: whose.into(), number };
    What::Event { on: "a".into(), id: Some(id.into()), content }
}

fn final_response(id: &str) -> What {
    let (on, of) = ("a".into(), "a".into());
    What::FinalResponse { on, id: Some(id.into()), of, is_error: false, text: "done".into() }
}

fn ran(key: &str, process: u32) -> What {
    What::Ran { key: key.into(), process }
}

fn gone(node: usize) -> What {
    What::Gone { on: "a".into(), node }
}

fn fault(node: usize, what: &'static str, process: u32) -> What {
    What::Fault { node: Some(node), what, process }
}

fn cut(node: usize) -> What {
    What::Cut { on: "a".into(), after: Some("1.x-2".into()), by_client: false, node }
}

fn resumed(node: usize) -> What {
    What::Resumed { on: "a".into(), after: "1.x-2".into(), node }
}

fn error(id: &str) -> What {
    let (on, of) = ("a".into(), "a".into());
    What::FinalResponse { on, id: Some(id.into()), of, is_error: true, text: "lost".into() }
}

/// Moves the entries from `from` on to a later time, without any entry in between.
fn pass(lines: &mut [Entry], from: usize, ms: u64) {
    lines.iter_mut().skip(from).for_each(|line| line.at += ms);
}

#[track_caller]
fn check_entries(entries: &[Entry], rules: &[&str]) {
    let verdict = judge(entries);
    let found: Vec<_> = verdict.violations.iter().map(|violation| violation.rule).collect();
    assert_eq!(found, rules, "{verdict}");
}

#[track_caller]
fn check(lines: impl IntoIterator<Item = What>, rules: &[&str]) {
    check_entries(&history(lines), rules);
}

#[test]
fn a_stream_that_was_cut_and_resumed_at_another_owner_may_happen() {
    let lines = [
        sent("a"),
        progress("1.x-2", 1),
        fault(0, "SIGKILL", 7),
        cut(0),
        resumed(1),
        progress("1.y-3", 2),
        final_response("1.y-4"),
        ran("a", 7),
    ];
    check(lines, &[]);
}

#[test]
fn a_lost_event_is_noticed_before_another_and_before_the_final_response() {
    check([sent("a"), progress("1.x-3", 2), final_response("1.x-4"), ran("a", 7)], &["lost"]);
    check([sent("a"), progress("1.x-2", 1), final_response("1.x-4"), ran("a", 7)], &["lost"]);
}

#[test]
fn a_doubled_event_is_noticed_by_its_number_and_by_its_id() {
    let lines =
        [progress("1.x-2", 1), progress("1.x-3", 1), progress("1.x-4", 2), final_response("1.x-5")];
    check([sent("a")].into_iter().chain(lines).chain([ran("a", 7)]), &["doubled"]);
    let lines =
        [progress("1.x-2", 1), progress("1.x-2", 1), progress("1.x-4", 2), final_response("1.x-5")];
    check([sent("a")].into_iter().chain(lines).chain([ran("a", 7)]), &["doubled", "doubled"]);
}

#[test]
fn events_out_of_order_are_noticed() {
    let lines = [
        sent("a"),
        progress("1.x-3", 2),
        progress("1.x-2", 1),
        final_response("1.x-4"),
        ran("a", 7),
    ];
    check(lines, &["lost", "reordered", "reordered"]);
}

#[test]
fn a_log_message_of_a_call_whose_client_has_gone_may_come_with_another_call() {
    let content = Content::Log { of: "b".into(), number: 2 };
    let astray = What::Event { on: "a".into(), id: Some("1.x-3".into()), content };
    let lines =
        [progress("1.x-2", 1), astray, progress("1.x-4", 2), final_response("1.x-5"), ran("a", 7)];
    let lines: Vec<_> = [sent("a")].into_iter().chain(lines).collect();
    check(lines.clone(), &["wrong stream"]);
    let killed = [fault(0, "SIGKILL", 7), What::Gone { on: "b".into(), node: 0 }];
    check(killed.into_iter().chain(lines), &[]);
}

#[test]
fn an_event_of_another_request_is_noticed() {
    let lines =
        [progress("1.x-2", 1), of("b", "1.x-3", 1), progress("1.x-4", 2), final_response("1.x-5")];
    check([sent("a")].into_iter().chain(lines).chain([ran("a", 7)]), &["wrong stream"]);
}

#[test]
fn two_final_responses_and_none_are_noticed() {
    let lines = [
        progress("1.x-2", 1),
        progress("1.x-3", 2),
        final_response("1.x-4"),
        final_response("1.x-5"),
    ];
    check([sent("a")].into_iter().chain(lines).chain([ran("a", 7)]), &["two final responses"]);
    check([sent("a"), What::GaveUp { on: "a".into() }], &["no final response"]);
}

#[test]
fn an_event_after_the_final_response_is_noticed() {
    let lines =
        [progress("1.x-2", 1), progress("1.x-3", 2), final_response("1.x-4"), progress("1.x-5", 3)];
    check([sent("a")].into_iter().chain(lines).chain([ran("a", 7)]), &["after the final response"]);
}

#[test]
fn a_call_that_may_not_run_twice_is_noticed_also_where_its_answer_was_lost() {
    let kill = What::Fault { node: Some(0), what: "SIGKILL", process: 9 };
    check([sent("a"), kill.clone(), gone(0), ran("a", 7), ran("a", 8)], &["ran twice"]);
    check([sent("a"), kill, gone(0), ran("a", 7)], &[]);
}

#[test]
fn a_call_that_goes_with_a_healthy_ingress_is_noticed() {
    let kill = What::Fault { node: Some(1), what: "SIGKILL", process: 9 };
    check([sent("a"), kill, gone(0)], &["cut without a fault"]);
}

#[test]
fn a_result_of_a_call_that_never_ran_is_noticed() {
    check(
        [sent("a"), progress("1.x-2", 1), progress("1.x-3", 2), final_response("1.x-4")],
        &["never ran"],
    );
}

#[test]
fn an_id_with_two_payloads_is_noticed() {
    let lines = [progress("1.x-2", 1), progress("1.x-2", 2), final_response("1.x-4"), ran("a", 7)];
    check([sent("a")].into_iter().chain(lines), &["two payloads"]);
}

#[test]
fn two_owners_at_once_are_noticed() {
    let same = [progress("1.x-2", 1), progress("1.y-2", 2), final_response("1.y-4"), ran("a", 7)];
    check([sent("a")].into_iter().chain(same), &["two owners"]);
    let amid = [progress("1.x-2", 1), progress("1.y-3", 2), final_response("1.x-4"), ran("a", 7)];
    check([sent("a")].into_iter().chain(amid), &["two owners"]);
}

#[test]
fn a_refusal_in_a_live_session_is_noticed() {
    let refused = What::Refused { on: "a".into(), status: 503, text: "busy".into() };
    check([sent("a"), refused], &["refused"]);
}

#[test]
fn a_log_level_that_was_forgotten_is_noticed() {
    let asked = Asked { is_quiet: true, ..COUNTED };
    let sent = What::Sent { key: "a".into(), asked };
    let content = Content::Log { of: "a".into(), number: 1 };
    let log = What::Event { on: "a".into(), id: Some("1.x-2".into()), content };
    let lines = [
        sent,
        log,
        progress("1.x-3", 1),
        progress("1.x-4", 2),
        final_response("1.x-5"),
        ran("a", 7),
    ];
    check(lines, &["forgotten level"]);
}

#[test]
fn the_silence_after_a_kill_counts_where_the_connection_lived() {
    let kill = What::Fault { node: Some(1), what: "SIGKILL", process: 7 };
    let lines = [
        sent("a"),
        progress("1.x-2", 1),
        kill,
        progress("1.y-3", 2),
        final_response("1.y-4"),
        ran("a", 7),
    ];
    let mut lines = history(lines);
    lines.iter_mut().skip(3).for_each(|line| line.at += 160);
    let silences = [Silences { had_heir: false, gaps: vec![161] }];
    assert_eq!(judge(&lines).figures.silences, silences);
}

/// The second run sends no events until it has reached the position of the first one.
#[test]
fn what_a_second_run_repeats_is_not_counted_as_silence() {
    let asked = Asked { may_rerun: true, ..COUNTED };
    let sent = What::Sent { key: "a".into(), asked };
    let kill = What::Fault { node: Some(1), what: "SIGKILL", process: 7 };
    let seen = [sent, progress("1.x-2", 1), kill, progress("1.y-3", 2), final_response("1.y-4")];
    let gaps = |runs: &[u32]| {
        let runs = runs.iter().map(|process| ran("a", *process));
        let mut lines = history(seen.iter().cloned().chain(runs));
        lines.iter_mut().skip(1).for_each(|line| line.at += 400);
        lines.iter_mut().skip(3).for_each(|line| line.at += 600);
        judge(&lines).figures.silences[0].gaps.clone()
    };
    assert_eq!(gaps(&[7]), [601]);
    assert_eq!(gaps(&[7, 8]), [200]);
    assert_eq!(gaps(&[6, 7]), [601]);
    assert!(gaps(&[6, 7, 8]).is_empty());
}

#[test]
fn a_node_that_ran_for_long_is_an_heir() {
    let killed = |heir_started: u64| {
        let lines = [fault(0, "starts", 6), fault(1, "starts", 7), fault(1, "SIGKILL", 7)];
        let mut lines = history(lines);
        (lines[0].at, lines[2].at) = (heir_started, 10_000);
        judge(&lines).figures.silences[0].had_heir
    };
    assert!(killed(6_000));
    assert!(!killed(7_000));
}

/// A call whose tool runs in process 7 of node 0 ends in an error, with faults meanwhile.
fn failed(asked: Asked, meanwhile: impl IntoIterator<Item = What>) -> Vec<What> {
    let mut lines = vec![
        fault(0, "starts", 7),
        fault(1, "starts", 8),
        What::Sent { key: "a".into(), asked },
        progress("1.x-2", 1),
    ];
    lines.extend(meanwhile);
    lines.extend([error("1.y-3"), ran("a", 7)]);
    lines
}

#[test]
fn an_error_is_noticed_where_nothing_was_done_to_the_owner() {
    check(failed(COUNTED, []), &["error"]);
    check(failed(COUNTED, [fault(1, "SIGKILL", 8)]), &["error"]);
    check(failed(COUNTED, [fault(0, "SIGTERM", 7)]), &["error"]);
    let partition = What::Fault { node: None, what: "partition", process: 0 };
    check(failed(COUNTED, [partition]), &["error"]);
    check(failed(COUNTED, [fault(0, "SIGKILL", 7)]), &[]);
}

#[test]
fn an_error_of_a_call_that_may_be_run_again_is_noticed_unless_it_has_asked() {
    let again = Asked { may_rerun: true, ..COUNTED };
    check(failed(again, [fault(0, "SIGKILL", 7)]), &["error"]);
    let content = Content::Question { of: "a".into(), id: "q".into() };
    let question = What::Event { on: "a".into(), id: Some("1.x-3".into()), content };
    let lines = [question, fault(0, "SIGKILL", 7), error("1.y-4"), ran("a", 7)];
    let begun = [fault(0, "starts", 7), What::Sent { key: "a".into(), asked: again }];
    check(begun.into_iter().chain(lines), &[]);
}

#[test]
fn an_error_is_noticed_where_the_owner_was_stopped_for_less_than_a_lease() {
    let stopped = failed(COUNTED, [fault(0, "SIGSTOP", 7), fault(0, "SIGCONT", 7)]);
    for (ms, rules) in [(3_000, &["error"][..]), (9_000, &[])] {
        let mut entries = history(stopped.clone());
        pass(&mut entries, 5, ms);
        check_entries(&entries, rules);
    }
}

#[test]
fn an_error_is_noticed_where_the_owner_was_struck_before_the_call_or_after_it() {
    // Calls that arrive while the kernel ends the process, or before its peers know, are lost with it.
    for (ends_after, ms, rules) in
        [(0, 15, &[][..]), (0, 25, &["error"]), (100, 15, &[]), (100, 25, &["error"])]
    {
        let mut before = vec![fault(0, "SIGKILL", 7), fault(0, "has died", 7)];
        before.extend(failed(COUNTED, []));
        let mut entries = history(before);
        pass(&mut entries, 1, ends_after);
        pass(&mut entries, 2, ms);
        check_entries(&entries, rules);
    }
    let mut after = failed(COUNTED, []);
    after.push(fault(0, "SIGKILL", 7));
    check(after, &["error"]);
}

/// The earlier runs of a session show its owner.
#[test]
fn an_error_of_a_call_that_never_ran_is_noticed_where_its_session_was_another_nodes() {
    let before = What::Sent { key: "b".into(), asked: Asked { count: 0, ..COUNTED } };
    let done = What::FinalResponse {
        on: "b".into(),
        id: None,
        of: "b".into(),
        is_error: false,
        text: String::new(),
    };
    for (struck, rules) in [((0, 7), &[][..]), ((1, 8), &["error"])] {
        let known = [fault(0, "starts", 7), fault(1, "starts", 8), before.clone(), done.clone()];
        let lines = [sent("a"), fault(struck.0, "SIGKILL", struck.1), error("1.y-3"), ran("b", 7)];
        check(known.into_iter().chain(lines), rules);
    }
}

#[test]
fn an_error_may_come_when_a_request_was_held_for_as_long_as_it_may_be() {
    for (ms, rules) in [(20_000, &["error"][..]), (25_000, &[])] {
        let mut entries = history(failed(COUNTED, []));
        pass(&mut entries, 4, ms);
        check_entries(&entries, rules);
    }
}

#[test]
fn a_stream_cut_by_a_node_to_which_nothing_was_done_is_noticed() {
    let rest = [resumed(1), progress("1.x-3", 2), final_response("1.x-4"), ran("a", 7)];
    let stream = |done: Option<What>| {
        let begun = [sent("a"), progress("1.x-2", 1)].into_iter().chain(done);
        begun.chain([cut(0)]).chain(rest.clone()).collect::<Vec<_>>()
    };
    check(stream(None), &["cut without a fault"]);
    check(stream(Some(fault(1, "SIGKILL", 8))), &["cut without a fault"]);
    check(stream(Some(fault(0, "SIGSTOP", 7))), &[]);
    check(stream(Some(fault(0, "SIGKILL", 7))), &[]);
    let mut late = history(stream(Some(fault(0, "SIGKILL", 7))));
    pass(&mut late, 3, 2_000);
    check_entries(&late, &["cut without a fault"]);
    // Meanwhile its client answered a server request, and did not read.
    let content = Content::Question { of: "a".into(), id: "q".into() };
    let question = What::Event { on: "a".into(), id: Some("1.x-2".into()), content };
    let begun = [sent("a"), progress("1.x-1", 1), question, fault(0, "SIGKILL", 7), cut(0)];
    let mut busy = history(begun.into_iter().chain(rest));
    pass(&mut busy, 4, 2_000);
    check_entries(&busy, &[]);
}

#[test]
fn a_broken_connection_of_what_is_repeated_is_noticed_too() {
    let broke = What::Broke { on: "a".into(), node: 0 };
    let rest = [progress("1.x-2", 1), progress("1.x-3", 2), final_response("1.x-4"), ran("a", 7)];
    check([sent("a"), broke].into_iter().chain(rest), &["cut without a fault"]);
}

#[test]
fn a_node_that_is_asked_to_stop_may_lose_a_handful_and_no_more() {
    let broke = || What::Broke { on: "l".into(), node: 0 };
    let stop = |lost| {
        let lost = (0..lost).map(|_| broke());
        let begun = [fault(0, "SIGTERM", 7)].into_iter().chain(lost);
        begun.chain([fault(0, "has stopped", 7)]).collect::<Vec<_>>()
    };
    check(stop(5), &[]);
    check(stop(6), &["cut without a fault"]);
}

fn listens(node: usize) -> What {
    What::Listens { on: "l".into(), node }
}

fn changed(id: &str) -> What {
    let content = Content::Other("notifications/tools/list_changed".into());
    What::Event { on: "l".into(), id: Some(id.into()), content }
}

fn toggled(key: &str) -> [What; 2] {
    let asked = Asked { announces: true, ..Asked::default() };
    let done = What::FinalResponse {
        on: key.into(),
        id: None,
        of: key.into(),
        is_error: false,
        text: String::new(),
    };
    [What::Sent { key: key.into(), asked }, done]
}

/// A session with a GET stream, to which three calls send a message; then time passes.
fn listened(events: [Vec<What>; 3]) -> Vec<Entry> {
    let mut lines = vec![fault(0, "starts", 7), listens(0)];
    for (call, events) in ["a", "b", "c"].into_iter().zip(events) {
        lines.extend(toggled(call));
        lines.extend(events);
    }
    let count = lines.len();
    lines.push(listens(1));
    let mut entries = history(lines);
    pass(&mut entries, count, 6_000);
    entries
}

#[test]
fn a_log_line_that_came_on_a_get_stream_is_not_lost_on_that_of_its_call() {
    let line = |on: &str, number| What::Event {
        on: on.into(),
        id: Some(format!("1.x-{}", number + 1)),
        content: Content::Log { of: "a".into(), number },
    };
    let own = |number| line("a", number);
    let with = |first: Option<What>| {
        let begun = [fault(0, "starts", 7), listens(0), sent("a")].into_iter().chain(first);
        let end = [own(2), own(3), progress("1.x-5", 1), progress("1.x-6", 2)];
        begun.chain(end).chain([final_response("1.x-7"), ran("a", 7)]).collect::<Vec<_>>()
    };
    check(with(Some(own(1))), &[]);
    check(with(None), &["lost"]);
    let elsewhere = What::Event {
        on: "l".into(),
        id: Some("9.x-2".into()),
        content: Content::Log { of: "a".into(), number: 1 },
    };
    check(with(Some(elsewhere)), &[]);
}

#[test]
fn a_question_on_a_get_stream_is_due_only_while_another_call_may_run() {
    let content = Content::Question { of: "a".into(), id: "1".into() };
    let asked =
        || What::Event { on: "l".into(), id: Some("0.x-1".into()), content: content.clone() };
    check([fault(0, "starts", 7), listens(0), asked()], &["wrong stream"]);
    let killed = [fault(0, "SIGKILL", 7), What::Gone { on: "b".into(), node: 0 }];
    check([listens(1)].into_iter().chain(killed).chain([asked()]), &[]);
}

#[test]
fn an_event_of_a_get_stream_that_is_lost_is_noticed() {
    let all = [vec![changed("0.x-1")], vec![changed("0.x-2")], vec![changed("0.x-3")]];
    check_entries(&listened(all), &[]);
    check_entries(&listened([vec![changed("0.x-1")], vec![], vec![changed("0.x-3")]]), &["lost"]);
    // No message is due before the first one.
    check_entries(&listened([vec![], vec![changed("0.x-2")], vec![changed("0.x-3")]]), &[]);
}

#[test]
fn an_event_of_a_get_stream_may_be_lost_with_an_owner_while_nobody_listens() {
    let gone = |killed: u32| {
        let cut = What::Cut { on: "l".into(), after: None, by_client: true, node: 0 };
        let struck = (killed > 0).then(|| fault(0, "SIGKILL", killed));
        let last = struck.into_iter().chain([listens(1)]).collect();
        listened([vec![changed("0.x-1"), cut], vec![], last])
    };
    check_entries(&gone(7), &[]);
    check_entries(&gone(0), &["lost"]);
}

#[test]
fn events_of_a_get_stream_that_are_doubled_reordered_or_of_a_request_are_noticed() {
    let listen = [listens(0), changed("0.x-1"), changed("0.x-1")];
    check(listen, &["doubled"]);
    check([listens(0), changed("0.x-2"), changed("0.x-1")], &["reordered"]);
    let content = Content::Progress { of: "a".into(), number: 1 };
    let astray = What::Event { on: "l".into(), id: Some("0.x-2".into()), content };
    check([listens(0), astray], &["wrong stream"]);
    let content = Content::Log { of: "a".into(), number: 1 };
    let logged = What::Event { on: "l".into(), id: Some("0.x-2".into()), content };
    check([listens(0), logged], &[]);
}

#[test]
fn a_get_stream_that_is_refused_is_noticed() {
    let refused = What::Refused { on: "l".into(), status: 503, text: "GET".into() };
    check([listens(0), refused], &["refused"]);
}

fn deleted(status: Option<u16>) -> What {
    What::Deleted { node: 0, status }
}

fn tried(status: u16) -> What {
    What::TriedAgain { node: 1, status: Some(status), took_ms: 3 }
}

#[test]
fn a_deleted_id_that_opens_something_is_noticed() {
    check([deleted(Some(204)), tried(404), tried(404)], &[]);
    for status in [200, 400, 503] {
        check([deleted(Some(204)), tried(404), tried(status)], &["deleted lives"]);
    }
    // The DELETE was not acknowledged with 204.
    check([deleted(Some(503)), tried(200)], &[]);
    let held = What::TriedAgain { node: 1, status: Some(503), took_ms: 25_010 };
    check([deleted(Some(204)), held], &[]);
}

#[test]
fn the_end_of_a_session_may_be_forgotten_by_a_failover_with_the_node_that_ended_it() {
    let failover = || What::Fault { node: None, what: "Redis fails over", process: 0 };
    check([deleted(Some(204)), failover(), tried(200)], &["deleted lives"]);
    let both = [deleted(Some(204)), fault(0, "SIGKILL", 7), failover(), tried(200)];
    check(both.clone(), &[]);
    let mut long_before = history(both);
    pass(&mut long_before, 1, 6_000);
    check_entries(&long_before, &["deleted lives"]);
}

#[test]
fn a_delete_that_comes_to_neither_204_nor_503_is_noticed() {
    check([deleted(Some(503))], &[]);
    check([deleted(Some(404))], &["delete"]);
    check([deleted(Some(500))], &["delete"]);
    check([deleted(None)], &["delete"]);
    check([fault(0, "SIGKILL", 7), deleted(None)], &[]);
}

#[test]
fn a_request_of_which_nothing_comes_for_longer_than_it_may_be_held_is_noticed() {
    let lines = [
        sent("a"),
        progress("1.x-2", 1),
        progress("1.x-3", 2),
        final_response("1.x-4"),
        ran("a", 7),
    ];
    for (ms, rules) in [(26_000, &[][..]), (28_000, &["hang"])] {
        let mut entries = history(lines.clone());
        pass(&mut entries, 1, ms);
        check_entries(&entries, rules);
    }
}

#[test]
fn calls_that_take_no_time_are_timed() {
    let asked = Asked { count: 0, ..COUNTED };
    let mut entries =
        history([What::Sent { key: "a".into(), asked }, final_response("1.x-2"), ran("a", 7)]);
    pass(&mut entries, 1, 300);
    assert_eq!(judge(&entries).figures.waits, [301]);
}

#[test]
fn the_longest_time_and_the_median_of_enough_times_have_limits() {
    let verdict = |waits: &[u64]| {
        let figures = Figures { waits: waits.to_vec(), ..Figures::default() };
        Verdict { figures, ..Verdict::default() }
    };
    let enough = verdict(&[1, 1, 301, 301, 301]);
    assert!(enough.in_time(301, 301).is_ok());
    assert!(enough.in_time(300, 301).is_err());
    assert!(enough.in_time(301, 300).is_err());
    assert!(verdict(&[1, 301, 301, 301]).in_time(300, 301).is_ok());
    assert!(verdict(&[1, 301, 301, 301]).in_time(300, 300).is_err());
}

//! Histories that may happen, and one that breaks each rule.

use super::super::{Asked, Entry, Says, What};
use super::judge;

const COUNTED: Asked = Asked { count: 2, is_recorded: true, may_rerun: false, is_quiet: false };

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
    let says = Says::Progress { of: whose.into(), number };
    What::Event { on: "a".into(), id: Some(id.into()), says }
}

fn word(id: &str) -> What {
    let (on, of) = ("a".into(), "a".into());
    What::Word { on, id: Some(id.into()), of, is_error: false, text: "done".into() }
}

fn ran(key: &str, process: u32) -> What {
    What::Ran { key: key.into(), process }
}

fn gone(node: usize) -> What {
    What::Gone { on: "a".into(), node }
}

fn check(lines: impl IntoIterator<Item = What>, rules: &[&str]) {
    let verdict = judge(&history(lines));
    let found: Vec<_> = verdict.violations.iter().map(|violation| violation.rule).collect();
    assert_eq!(found, rules, "{verdict}");
}

#[test]
fn a_stream_that_was_cut_and_resumed_at_another_owner_may_happen() {
    let cut = What::Cut { on: "a".into(), after: Some("1.x-2".into()), by_client: false };
    let again = What::Resumed { on: "a".into(), after: "1.x-2".into(), node: 1 };
    let lines = [
        sent("a"),
        progress("1.x-2", 1),
        cut,
        again,
        progress("1.y-3", 2),
        word("1.y-4"),
        ran("a", 7),
    ];
    check(lines, &[]);
}

#[test]
fn a_lost_event_is_noticed_before_another_and_before_the_last_word() {
    check([sent("a"), progress("1.x-3", 2), word("1.x-4"), ran("a", 7)], &["lost"]);
    check([sent("a"), progress("1.x-2", 1), word("1.x-4"), ran("a", 7)], &["lost"]);
}

#[test]
fn a_doubled_event_is_noticed_by_its_number_and_by_its_id() {
    let lines = [progress("1.x-2", 1), progress("1.x-3", 1), progress("1.x-4", 2), word("1.x-5")];
    check([sent("a")].into_iter().chain(lines).chain([ran("a", 7)]), &["doubled"]);
    let lines = [progress("1.x-2", 1), progress("1.x-2", 1), progress("1.x-4", 2), word("1.x-5")];
    check([sent("a")].into_iter().chain(lines).chain([ran("a", 7)]), &["doubled", "doubled"]);
}

#[test]
fn events_out_of_order_are_noticed() {
    let lines = [sent("a"), progress("1.x-3", 2), progress("1.x-2", 1), word("1.x-4"), ran("a", 7)];
    check(lines, &["lost", "reordered", "reordered"]);
}

#[test]
fn an_event_of_another_request_is_noticed() {
    let lines = [progress("1.x-2", 1), of("b", "1.x-3", 1), progress("1.x-4", 2), word("1.x-5")];
    check([sent("a")].into_iter().chain(lines).chain([ran("a", 7)]), &["wrong stream"]);
}

#[test]
fn two_last_words_and_none_are_noticed() {
    let lines = [progress("1.x-2", 1), progress("1.x-3", 2), word("1.x-4"), word("1.x-5")];
    check([sent("a")].into_iter().chain(lines).chain([ran("a", 7)]), &["two last words"]);
    check([sent("a"), What::GaveUp { on: "a".into() }], &["no last word"]);
}

#[test]
fn an_event_after_the_last_word_is_noticed() {
    let lines = [progress("1.x-2", 1), progress("1.x-3", 2), word("1.x-4"), progress("1.x-5", 3)];
    check([sent("a")].into_iter().chain(lines).chain([ran("a", 7)]), &["after the last word"]);
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
    check([sent("a"), progress("1.x-2", 1), progress("1.x-3", 2), word("1.x-4")], &["never ran"]);
}

#[test]
fn an_id_with_two_payloads_is_noticed() {
    let lines = [progress("1.x-2", 1), progress("1.x-2", 2), word("1.x-4"), ran("a", 7)];
    check([sent("a")].into_iter().chain(lines), &["two payloads"]);
}

#[test]
fn two_owners_at_once_are_noticed() {
    let same = [progress("1.x-2", 1), progress("1.y-2", 2), word("1.y-4"), ran("a", 7)];
    check([sent("a")].into_iter().chain(same), &["two owners"]);
    let amid = [progress("1.x-2", 1), progress("1.y-3", 2), word("1.x-4"), ran("a", 7)];
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
    let says = Says::Log { of: "a".into(), number: 1 };
    let log = What::Event { on: "a".into(), id: Some("1.x-2".into()), says };
    let lines = [sent, log, progress("1.x-3", 1), progress("1.x-4", 2), word("1.x-5"), ran("a", 7)];
    check(lines, &["forgotten level"]);
}

#[test]
fn the_silence_after_a_kill_counts_where_the_connection_lived() {
    let kill = What::Fault { node: Some(1), what: "SIGKILL", process: 7 };
    let lines =
        [sent("a"), progress("1.x-2", 1), kill, progress("1.y-3", 2), word("1.y-4"), ran("a", 7)];
    let mut lines = history(lines);
    lines.iter_mut().skip(3).for_each(|line| line.at += 160);
    assert_eq!(judge(&lines).figures.gaps, [161]);
}

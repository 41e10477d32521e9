//! Invariants of any sequence of events: no message lost, doubled or on another stream, one final
//! response for every request, and every limit.
//!
//! `World` checks each effect; this file checks the invariants of a whole run.

use std::collections::BTreeSet;

use crate::scenario::{Act, Scenario, acts, acts_and_deaths, final_responses, progress};
use crate::world::World;
use conversation::{Answer, EventId, Limits, Millis, Rerun};
use proptest::prelude::*;

fn run(revision: &str, limits: Limits, prompt: bool, acts: Vec<Act>) {
    let nothing_dropped = limits == wide();
    let mut scenario = Scenario::new(revision, limits, prompt);
    for act in acts {
        scenario.act(act);
    }
    check(scenario, nothing_dropped);
}

/// As `run`, and owners are lost or leave, and other owners follow.
fn run_with_deaths(limits: Limits, prompt: bool, rerun: Rerun, annotated: bool, acts: Vec<Act>) {
    let mut scenario = Scenario::with("2025-11-25", limits, prompt, rerun);
    scenario.annotated = annotated;
    for act in acts {
        scenario.act(act);
    }
    let may_run_twice = rerun == Rerun::Always || (rerun == Rerun::Annotated && annotated);
    let runs = check(scenario, false).runs;
    assert!(may_run_twice || runs.values().all(|runs| *runs == 1), "run twice: {runs:?}");
}

fn check(mut scenario: Scenario, nothing_dropped: bool) -> Scenario {
    scenario.settle();
    let posts: Vec<_> = scenario.posts.keys().copied().collect();
    for post in posts {
        let ids = scenario.posts[&post].clone();
        let mut received = scenario.received(post);
        if received.unlogged {
            let mut once = BTreeSet::new();
            received.messages.retain(|text| once.insert(text.clone()));
        }
        let dropped = received.messages.iter().any(|text| text.contains("-32603"));
        if received.unlogged && dropped && ids.len() > 1 {
            // A client that resumes a trimmed stream receives again every message that it received
            // without an id.
            continue;
        }
        let words = final_responses(&received.messages);
        let distinct: BTreeSet<_> = words.iter().copied().collect();
        assert_eq!(words.len(), distinct.len(), "two final responses to {post:?}: {words:?}");
        let expected: BTreeSet<_> =
            ids.iter().copied().filter(|id| !scenario.cancelled.contains(id)).collect();
        assert!(distinct.iter().all(|id| ids.contains(id)), "a final response to another POST");
        if received.complete {
            assert!(
                expected.is_subset(&distinct),
                "no final response: {expected:?} of {:?}",
                received.messages
            );
        }
        let rises = progress(&received.messages).is_sorted_by(|one, next| one < next);
        assert!(rises || ids.len() > 1, "progress does not rise: {:?}", received.messages);
        if nothing_dropped && received.complete && ids.len() == 1 && !expected.is_empty() {
            let sent = scenario.progress.get(&ids[0]).cloned().unwrap_or_default();
            assert_eq!(progress(&received.messages), sent, "progress lost or out of order");
        }
        if let Some(cursor) = received.cursor.filter(|_| received.complete && !dropped)
            && !expected.is_empty()
        {
            let numbers: Vec<_> = received.events.iter().map(|id| id.number).collect();
            let mut held = scenario.events_beside(cursor);
            if received.unlogged {
                held.retain(|number| numbers.contains(number));
            }
            if expected.len() < ids.len() {
                // A client that cancels does not resume for later messages.
                held.truncate(numbers.len());
            }
            assert_eq!(numbers, held, "lost, doubled or out of order");
        }
        let once: BTreeSet<_> = received.messages.iter().collect();
        assert_eq!(received.messages.len(), once.len(), "a message twice: {:?}", received.messages);
    }
    scenario
}

/// Limits that are never reached.
fn wide() -> Limits {
    Limits {
        request_secs: 600,
        replay_secs: 3_600,
        exchanges_max: 200,
        server_requests_max: 200,
        progress_burst: 1_000,
        // Most states are saved as differences.
        whole_state_bytes_max: 0,
        ..Limits::default()
    }
}

/// Limits that large messages reach.
fn for_large() -> Limits {
    Limits { log_bytes_max: 900, message_bytes_max: LARGE_MAX, ..wide() }
}

/// The largest message of [`for_large`].
const LARGE_MAX: usize = 2_000;

/// As `run`, with messages around every limit in bytes: a client that stays connected receives
/// every message.
fn run_large(revision: &str, prompt: bool, acts: Vec<Act>) {
    let mut scenario = Scenario::new(revision, for_large(), prompt);
    scenario.large = Some(LARGE_MAX + LARGE_MAX / 10);
    for act in acts {
        scenario.act(act);
    }
    let scenario = check(scenario, false);
    for post in scenario.posts.keys() {
        let connection = &scenario.world.connections[post];
        let dropped = connection.messages().iter().any(|text| text.contains("were dropped"));
        assert!(connection.gone || !dropped, "{post:?} received {:?}", connection.messages());
    }
}

/// Limits that are often reached.
fn narrow() -> Limits {
    Limits {
        exchanges_max: 3,
        server_requests_max: 2,
        standalone_max: 2,
        waiting_max: 2,
        log_events_max: 6,
        log_bytes_max: 900,
        message_bytes_max: 500,
        replay_secs: 20,
        request_secs: 10,
        progress_burst: 2,
        progress_per_sec: 5,
        ping_secs: 7,
        stream_secs: 9,
        idle_secs: 100_000,
        ..Limits::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_client_that_resumes_gets_every_message_once(
        acts in acts(),
        revision in prop::sample::select(vec!["2025-03-26", "2025-06-18", "2025-11-25"]),
        prompt in any::<bool>(),
    ) {
        run(revision, wide(), prompt, acts);
    }

    #[test]
    fn every_limit_holds_and_every_request_gets_a_final_response(
        acts in acts(),
        revision in prop::sample::select(vec!["2025-03-26", "2025-06-18", "2025-11-25"]),
        prompt in any::<bool>(),
    ) {
        run(revision, narrow(), prompt, acts);
    }

    #[test]
    fn large_messages_reach_whoever_waits_for_them(
        acts in acts(),
        revision in prop::sample::select(vec!["2025-03-26", "2025-06-18", "2025-11-25"]),
        prompt in any::<bool>(),
    ) {
        run_large(revision, prompt, acts);
    }

    #[test]
    fn whoever_owns_a_session_its_client_gets_everything_once(
        acts in acts_and_deaths(),
        prompt in any::<bool>(),
        rerun in prop::sample::select(vec![Rerun::Annotated, Rerun::Always, Rerun::Never]),
        annotated in any::<bool>(),
    ) {
        run_with_deaths(wide(), prompt, rerun, annotated, acts);
    }

    #[test]
    fn with_changing_owners_every_limit_holds_and_every_request_gets_a_final_response(
        acts in acts_and_deaths(),
        prompt in any::<bool>(),
        rerun in prop::sample::select(vec![Rerun::Annotated, Rerun::Always, Rerun::Never]),
        annotated in any::<bool>(),
    ) {
        run_with_deaths(narrow(), prompt, rerun, annotated, acts);
    }

    #[test]
    fn any_text_as_an_event_id_is_refused_or_was_sent(text in "[0-9a-f.\\-]{0,60}|.{0,80}") {
        let mut world = World::live("2025-11-25", wide());
        let sink = world.listen_text(Some(text));
        prop_assert!(matches!(world.connections[&sink].answer, Some(Answer::Refused(_))));
    }

    #[test]
    fn an_event_id_reads_back_as_it_was_written(stream: u64, owner_tag: u64, number: u64) {
        let id = EventId { stream, owner_tag: conversation::OwnerTag(owner_tag), number };
        prop_assert_eq!(EventId::parse(&id.to_string()), Some(id));
    }

    #[test]
    fn any_text_parses_as_an_event_id_only_if_it_is_one(text in "[0-9a-f.\\-+ ]{0,60}|.{0,80}") {
        if let Some(id) = EventId::parse(&text) {
            prop_assert_eq!(id.to_string(), text);
        }
    }
}

#[test]
fn time_never_goes_back_in_a_deadline() {
    let world = World::live("2025-11-25", wide());
    assert!(world.session.deadline() > Some(Millis(0)));
}

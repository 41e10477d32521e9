//! Faults for tests of the tests: each breaks one decision of this crate.
//!
//! Only builds with the feature `mutants` contain a fault, and no release build has it: without
//! the feature [`mutant!`] is the literal `false`. The test `mutants` of the simulator selects
//! each fault in turn and fails where no seed and no schedule finds it.

#[cfg(feature = "mutants")]
use std::cell::Cell;

/// Is this fault selected? Always `false` without the feature `mutants`.
#[cfg(feature = "mutants")]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::is_mutant_selected($name)
    };
}

/// Is this fault selected? Always `false` without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        false
    };
}

#[cfg(feature = "mutants")]
thread_local! {
    static SELECTED: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Selects a fault, or none, for everything that this thread decides from now on.
#[cfg(feature = "mutants")]
pub fn select_mutant(name: Option<&'static str>) {
    SELECTED.set(name);
}

/// Is this the fault that the thread has selected?
#[cfg(feature = "mutants")]
pub fn is_mutant_selected(name: &str) -> bool {
    SELECTED.get().is_some_and(|selected| selected == name)
}

/// The name of each fault, and what it does.
#[cfg(feature = "mutants")]
pub const MUTANTS: &[(&str, &str)] = &[
    ("append_wakes_nobody", "an acknowledged append writes nothing to the client"),
    ("tell_before_the_append", "an entry is written to the client before the store holds it"),
    (
        "disconnect_drops_the_call",
        "a closed connection drops the call, as if it were a cancellation",
    ),
    ("end_leaves_streams_open", "the end of a session does not finish its streams"),
    ("accept_before_the_append", "a notification is accepted before its log entry is held"),
    ("never_rejoin", "a post that comes again does not join the call that runs already"),
    ("take_again_as_new", "a post that comes again is sent to the server as a new one"),
    ("cancel_only_at_the_server", "a cancellation is forwarded to the server and not recorded"),
    ("final_response_leaves_the_stream_open", "a stream is not closed after its last response"),
    ("answer_a_change_at_once", "a change answered as JSON is acknowledged before it is saved"),
    ("write_an_event_twice", "a message is written to the log twice"),
    (
        "head_names_the_next_event",
        "the head of a response has the id of the event after the right one",
    ),
    (
        "resume_what_was_lost",
        "a resume after an entry that was lost goes on as if nothing was lost",
    ),
    (
        "every_resumed_stream_is_lost",
        "every resumed stream of a call ends with the error for a lost one",
    ),
    ("replay_skips_an_event", "a resumed stream misses its first event"),
    ("replay_repeats_an_event", "a resumed stream repeats the event it was resumed after"),
    ("resume_over_a_hole", "a stream resumed after trimmed entries goes on without an error"),
    ("trim_without_a_checkpoint", "trimming forgets what must outlive the trimmed entries"),
    ("open_the_gate_early", "an answer does not wait until the store holds what it acknowledges"),
    ("never_open_the_gate", "an answer that waits for the store is never given when that holds it"),
    (
        "promise_when_the_wait_is_over",
        "a change is acknowledged although the store did not within the bound",
    ),
    ("run_everything_again", "each call is run a second time, whether or not that does harm"),
    ("run_nothing_again", "no call is run a second time, even where that does no harm"),
    ("restore_no_cancellation", "the cancelled calls are not read from the record"),
    ("ask_again", "a call that has asked the client something is run a second time"),
    ("say_nothing_of_what_is_lost", "a call that cannot be run again gets no error"),
    ("progress_begins_anew", "the progress of a call that is run again restarts at its beginning"),
    ("restore_no_level", "the log level is not read from the record"),
    ("questions_are_not_withdrawn", "questions of a lost owner stay open at the client"),
    ("settle_no_stream", "streams that a lost owner left open are not settled"),
    ("read_no_end_of_a_stream", "reading the log ignores the end of a stream"),
    ("forget_a_cancellation", "the id of a cancelled call is not saved"),
    ("answer_a_delete_at_once", "a DELETE is answered before the store holds the end"),
    ("an_unknown_end_is_an_end", "a DELETE is answered as done although the store did not say so"),
    ("keep_no_result", "a result whose way to the client may be lost is not kept"),
    (
        "end_without_the_final_responses",
        "a session that ends does not write what waits for the store",
    ),
    ("name_what_is_not_held", "an event that the store does not hold is written with its id"),
    ("answer_another_question", "an answer reaches a question of the same number of another owner"),
    ("leave_with_work_in_hand", "a session is handed over while calls are in flight"),
    ("skip_an_event", "the first of several acknowledged entries is not written to the client"),
    (
        "hand_out_entries_before_the_state",
        "entries may reach the store before the state that changed with them",
    ),
    ("sign_all_entries", "all entries are written anew under the newest owner tag"),
];

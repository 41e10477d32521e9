//! The tests of the fixture server, run for both of its kinds.

mod client;
mod features;
mod talk;
mod tools;

use crate::client::Kind;

/// Each test, run for each kind.
macro_rules! scenarios {
    ($($file:ident :: $scenario:ident,)+) => {
        mod native {
            $(#[tokio::test] async fn $scenario() { crate::$file::$scenario(super::Kind::Native).await; })+
        }
        mod program {
            $(#[tokio::test] async fn $scenario() { crate::$file::$scenario(super::Kind::Program).await; })+
        }
    };
}

scenarios! {
    features::every_revision_with_a_handshake_is_spoken,
    features::lists_come_in_pages_that_make_up_the_whole,
    features::a_cursor_that_was_never_given_out_is_refused,
    features::resources_are_read_by_uri_and_by_template,
    features::a_missing_resource_is_named_in_the_error,
    features::a_touched_resource_is_told_to_subscribers_only,
    features::prompts_put_in_their_arguments,
    features::a_prompt_that_cannot_be_given_is_refused,
    features::a_completion_holds_at_most_a_hundred_values,
    features::a_completion_of_nothing_known_is_refused,
    features::unknown_methods_and_bad_parameters_are_told_apart,
    tools::the_first_tool_needs_nothing_and_succeeds,
    tools::each_kind_of_content_is_there,
    tools::schemas_keep_every_keyword_and_their_order,
    tools::an_unknown_tool_is_an_error_and_a_failing_one_is_not,
    tools::a_missing_argument_is_the_tools_failure,
    tools::an_echo_returns_its_arguments_twice,
    tools::a_tool_comes_and_goes,
    tools::a_text_is_as_long_as_it_was_asked_for,
    tools::the_environment_is_told_only_by_a_process_of_its_own,
    talk::log_messages_come_before_the_answer_and_respect_the_level,
    talk::progress_rises_and_comes_only_where_it_was_asked_for,
    talk::counting_tells_every_number_in_order,
    talk::the_model_is_asked_and_its_answer_told,
    talk::the_user_is_asked_one_question_after_another,
    talk::forms_go_out_as_they_are_written,
    talk::the_roots_are_told,
    talk::nobody_is_asked_who_did_not_say_so,
    talk::a_cancelled_call_is_counted_and_not_answered,
    talk::a_cancelled_call_takes_back_its_question,
    talk::a_crash_is_no_silent_end,
}

//! The guarantees of every store, as tests that run on each implementation. For tests only.
//!
//! Each guarantee is one async function, named by its claim. [`contract!`](crate::contract!)
//! makes a test of each, given an expression that creates a [`World`]. Each test uses new
//! sessions, tenants and nodes, so that tests can share one store and run concurrently.
//!
//! No test starts a real failover: a record that lost a claim is simulated by one that never
//! got it.

pub mod claiming;
pub mod ending;
pub mod leasing;
pub mod logging;
pub mod making;
pub mod noting;
pub mod reasserting;
pub mod revoking;
pub mod saving;
pub mod scanning;

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use bytes::Bytes;
use protocol::SessionId;

use crate::{
    Appended, Batch, Claimed, Digest, Error, Expected, Incarnation, Owner, PrimaryId, Record,
    RecordStatus, State, StateExtension, Store, Token,
};

/// A store under test, and its clock.
#[async_trait::async_trait]
pub trait World: Send + Sync {
    /// The store.
    fn store(&self) -> &dyn Store;

    /// Advances the store's clock, or waits.
    async fn pass(&self, time: Duration);
}

/// Makes a `#[tokio::test]` of every guarantee, each with a world of its own:
/// `store::contract!(Redis::fresh().await)`.
#[macro_export]
macro_rules! contract {
    (@tests $area:ident, $world:expr; $($guarantee:ident,)+) => {
        $(#[tokio::test]
        async fn $guarantee() {
            $crate::contract::$area::$guarantee(&$world).await;
        })+
    };
    ($world:expr) => {
        $crate::contract!(@tests making, $world;
            a_record_reads_back_as_it_was_written,
            creating_a_session_again_with_the_same_token_succeeds_and_changes_nothing,
            creating_a_session_with_another_token_is_refused,
            creating_a_session_late_does_not_take_it_from_its_next_owner,
            creating_a_session_late_restores_none_that_ended,
            an_unknown_session_reads_as_none_and_takes_nothing,
            a_session_is_absent_after_its_time_to_live,
            claims_and_appends_prolong_a_session,
            an_append_without_the_flag_does_not_prolong_a_session,
            an_answer_to_a_reader_prolongs_nothing,
        );
        $crate::contract!(@tests noting, $world;
            a_note_is_read_as_it_was_written,
            a_note_is_added_only_where_there_is_none,
            a_note_is_taken_once,
            a_note_expires,
        );
        $crate::contract!(@tests claiming, $world;
            a_claim_returns_the_record_and_the_log,
            a_repeated_claim_succeeds,
            of_two_claims_one_wins,
            two_claims_with_one_counter_are_two_claims,
            a_late_claim_changes_nothing,
            a_claim_that_expects_a_past_owner_is_refused,
            a_claim_must_raise_the_counter,
            a_node_may_claim_from_itself,
            former_tokens_are_kept_newest_first_and_sixteen_at_most,
            a_released_session_goes_to_the_first_claimant,
            an_owned_session_is_not_taken_for_released,
            a_claim_from_an_owner_that_released_meanwhile_succeeds,
            a_claimed_log_continues_where_it_ended,
            no_claim_or_release_is_executed_that_names_another_primary,
        );
        $crate::contract!(@tests logging, $world;
            entries_are_read_in_the_order_of_their_numbers,
            entries_that_are_held_already_are_dropped,
            a_late_duplicate_of_any_batch_changes_nothing,
            a_hole_is_refused_and_the_error_names_the_last_number,
            batches_that_arrived_out_of_order_are_completed_by_sending_them_again,
            an_empty_log_takes_only_what_begins_at_the_floor,
            a_log_that_ends_below_the_floor_is_replaced,
            entries_below_the_floor_are_trimmed_from_log_and_batch,
            a_floor_above_everything_empties_the_log,
            a_late_batch_with_a_lower_floor_restores_nothing,
            an_empty_batch_notices_a_lost_tail,
            an_empty_batch_trims_and_adds_nothing,
            an_empty_batch_is_taken_where_nothing_is_replayable,
            a_deposed_owner_appends_nothing_and_gets_the_name_of_the_owner,
            each_of_many_batches_is_answered_for_itself,
            payloads_are_kept_byte_for_byte,
        );
        $crate::contract!(@tests reasserting, $world;
            a_missing_session_is_written_anew,
            a_record_that_lost_a_claim_is_replaced_with_its_log,
            a_record_that_lost_several_claims_is_replaced,
            a_released_record_that_lost_a_claim_is_replaced,
            under_the_own_token_only_missing_entries_are_appended,
            under_the_own_token_only_a_newer_state_is_saved,
            reasserting_again_succeeds,
            the_session_of_another_owner_is_not_taken_by_reasserting,
            reasserting_late_does_not_undo_the_next_claim,
            reasserting_late_does_not_undo_a_release,
            a_ring_that_does_not_begin_at_its_floor_is_refused_and_changes_nothing,
            a_tombstone_is_not_undone_by_reasserting,
            a_tombstone_that_a_failover_lost_is_restored,
            a_tombstone_of_a_deposed_owner_ends_nothing,
        );
        $crate::contract!(@tests saving, $world;
            only_a_higher_version_is_written,
            an_extension_is_added_to_the_version_before_it,
            a_claimant_adds_to_a_state_with_differences,
            a_late_state_does_not_replace_a_newer_one,
            a_deposed_owner_saves_nothing,
            a_claimant_gets_the_newest_state,
            a_claimant_continues_from_the_version_that_it_got,
        );
        $crate::contract!(@tests ending, $world;
            a_repeated_release_succeeds,
            nothing_is_done_under_a_released_token,
            a_late_release_does_not_release_the_next_owner,
            a_release_leaves_state_and_log_to_the_next_owner,
            an_ended_session_is_a_tombstone_without_a_log,
            a_repeated_end_succeeds,
            an_ended_session_takes_nothing,
            a_deposed_owner_ends_nothing,
            a_tombstone_expires,
        );
        $crate::contract!(@tests scanning, $world;
            the_pages_of_a_scan_have_each_session_that_is_there_all_the_time,
            a_scan_names_sessions_as_they_were_created,
            a_scan_names_no_session_that_is_gone,
        );
        $crate::contract!(@tests revoking, $world;
            revocations_are_read_as_they_were_written,
            of_each_client_the_latest_times_count,
            the_generation_changes_with_each_change,
            a_renewal_returns_the_generation,
            ended_revocations_are_dropped_with_the_next_one,
            names_of_clients_are_kept_byte_for_byte,
        );
        $crate::contract!(@tests leasing, $world;
            a_renewal_returns_whether_the_lease_was_there,
            a_lapse_of_a_lease_is_reported_until_it_is_acknowledged,
            a_live_node_is_listed_with_its_newest_lease,
            a_lapsed_node_is_gone,
            a_dead_mark_is_never_overwritten_by_a_renewal,
            a_node_to_which_a_live_peer_has_a_link_is_not_marked,
            two_nodes_that_died_together_can_be_marked,
            a_node_that_renewed_since_it_was_found_dead_is_not_marked,
            links_of_dead_nodes_and_of_the_marker_prevent_no_mark,
            of_two_nodes_that_mark_each_other_the_first_wins,
            a_node_without_a_lease_marks_no_node,
            marking_again_succeeds,
            a_node_that_is_gone_can_be_marked_and_stays_dead,
            a_mark_expires,
            a_repeated_renewal_is_answered_as_the_first_one_was,
            a_late_renewal_changes_nothing,
            a_node_that_left_is_not_brought_back_by_a_late_renewal,
        );
    };
}

/// A time to live that does not expire during a test.
const LONG: Duration = Duration::from_secs(600);

/// A time to live that a test waits for.
const SHORT: Duration = Duration::from_millis(1_000);

/// Clearly less than [`SHORT`], and more than half of it.
const MOST_OF_SHORT: Duration = Duration::from_millis(600);

/// Clearly more than [`SHORT`].
const MORE_THAN_SHORT: Duration = Duration::from_millis(1_100);

/// One session in a world, and the operations of a test on it.
///
/// Entries are written as words: `"a b c"` are three.
struct Scene<'w> {
    world: &'w dyn World,
    session: SessionId,
    tenant: String,
}

impl<'w> Scene<'w> {
    /// A session that is not in the store yet.
    fn new(world: &'w dyn World) -> Self {
        Self { world, session: session(), tenant: format!("tenant-{:x}", random()) }
    }

    /// A new session with its owner.
    async fn owned(world: &'w dyn World) -> (Self, Owner) {
        let (scene, owner) = (Self::new(world), first());
        scene.create(scene.record(owner)).await.expect("a new session is made");
        (scene, owner)
    }

    /// A session that was claimed once, with its deposed owner and its current one.
    async fn claimed(world: &'w dyn World) -> (Self, Owner, Owner) {
        let (scene, old) = Self::owned(world).await;
        let new = heir(old);
        scene.claim(old.token, new).await.expect("the claim is granted");
        (scene, old, new)
    }

    fn store(&self) -> &'w dyn Store {
        self.world.store()
    }

    fn record(&self, owner: Owner) -> Record {
        Record {
            owner,
            former: Vec::new(),
            tenant: self.tenant.as_str().into(),
            principal: Digest([7; 32]),
            revision: "2025-11-25".into(),
            initialize: (*br#"{"capabilities":{}}"#).into(),
            state: State { version: 1, bytes: (*b"one").into() },
            status: RecordStatus::Owned,
        }
    }

    /// The record of an owner that claimed the session after the owners in `old`.
    fn record_after(&self, owner: Owner, old: &[Owner]) -> Record {
        let former = old.iter().map(|owner| owner.token).collect();
        Record { former, ..self.record(owner) }
    }

    fn batch(&self, owner: Owner, first: u64, floor: u64, words: &str) -> Batch {
        Batch {
            session: self.session.clone(),
            token: owner.token,
            first,
            floor,
            entries: entries(words),
            ttl: LONG,
            prolongs: true,
        }
    }

    async fn create(&self, record: Record) -> Result<(), Error> {
        self.store().create(&self.session, record, LONG).await
    }

    async fn claim(&self, expected: Token, new: Owner) -> Result<Claimed, Error> {
        self.store().claim(&self.session, Expected::Token(expected), new, None, LONG).await
    }

    async fn claim_released(&self, new: Owner) -> Result<Claimed, Error> {
        self.store().claim(&self.session, Expected::Released, new, None, LONG).await
    }

    async fn append(
        &self,
        owner: Owner,
        first: u64,
        floor: u64,
        words: &str,
    ) -> Result<Appended, Error> {
        self.store().append(self.batch(owner, first, floor, words)).await
    }

    async fn reassert(
        &self,
        record: Record,
        first: u64,
        floor: u64,
        words: &str,
    ) -> Result<Appended, Error> {
        let ring = self.batch(record.owner, first, floor, words);
        self.store().reassert(record, ring).await
    }

    async fn save(&self, owner: Owner, version: u64, text: &'static str) -> Result<u64, Error> {
        let state = State { version, bytes: text.as_bytes().into() };
        self.store().save(&self.session, owner.token, state).await
    }

    async fn extend(
        &self,
        owner: Owner,
        (after, version): (u64, u64),
        text: &'static str,
    ) -> Result<u64, Error> {
        let extension = StateExtension { after, version, bytes: text.as_bytes().into() };
        self.store().extend_state(&self.session, owner.token, extension).await
    }

    async fn release(&self, owner: Owner) -> Result<(), Error> {
        self.store().release(&self.session, owner.token, None, LONG).await
    }

    async fn end(&self, owner: Owner) -> Result<(), Error> {
        self.store().end(&self.session, owner.token, LONG).await
    }

    async fn read(&self) -> Option<Record> {
        self.store().read(&self.session).await.expect("the store answers")
    }

    /// The log holds exactly these words, the first under this number.
    #[track_caller]
    fn holds(&self, first: u64, words: &str) -> impl Future<Output = ()> {
        let words: Vec<_> = (first..).zip(entries(words)).collect();
        let caller = std::panic::Location::caller();
        async move {
            let held = self.store().read_log(&self.session).await.expect("the store answers");
            assert_eq!(held, words, "the log at {caller}");
        }
    }

    /// The record names this owner, who acts for the session.
    #[track_caller]
    fn is_owned_by(&self, owner: Owner) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let record = self.read().await.unwrap_or_else(|| panic!("no record at {caller}"));
            assert_eq!((record.owner, record.status), (owner, RecordStatus::Owned), "at {caller}");
        }
    }
}

/// One entry a word.
fn entries(words: &str) -> Vec<Bytes> {
    words.split_whitespace().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect()
}

/// The batch was taken, through this number.
#[track_caller]
fn through(answer: Result<Appended, Error>, number: u64) {
    assert_eq!(answer.expect("the batch is taken").through, Some(number));
}

/// Refused, because this one owns the session.
#[track_caller]
fn fenced_by<T: Debug>(owner: Owner, answer: Result<T, Error>) {
    match answer {
        Err(Error::Fenced(by)) => assert_eq!(by, owner),
        other => panic!("expected a fence by {owner:?}, not {other:?}"),
    }
}

/// Refused, because entries after `last` are missing.
#[track_caller]
fn hole_after(last: Option<u64>, answer: Result<Appended, Error>) {
    match answer {
        Err(Error::Hole { last: named }) => assert_eq!(named, last),
        other => panic!("expected a hole after {last:?}, not {other:?}"),
    }
}

#[track_caller]
fn missing<T: Debug>(answer: Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Missing)), "expected a missing session, not {answer:?}");
}

#[track_caller]
fn released<T: Debug>(answer: Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Released)), "expected a release, not {answer:?}");
}

#[track_caller]
fn ended<T: Debug>(answer: Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Ended)), "expected an ended session, not {answer:?}");
}

/// The owner of a session that is being made.
fn first() -> Owner {
    Owner { token: Token::first(random()), node: Incarnation(random()) }
}

/// An owner to claim the session after `owner`.
fn heir(owner: Owner) -> Owner {
    Owner { token: owner.token.next(random()), node: Incarnation(random()) }
}

fn session() -> SessionId {
    SessionId::parse(&format!("contract-{:016x}{:016x}", random(), random())).expect("a valid id")
}

/// Random enough for names that must not meet.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    /// Every guarantee in these files must also be in the macro.
    #[test]
    fn the_macro_names_every_guarantee() {
        let this = include_str!("contract.rs");
        for area in [
            include_str!("contract/claiming.rs"),
            include_str!("contract/ending.rs"),
            include_str!("contract/leasing.rs"),
            include_str!("contract/logging.rs"),
            include_str!("contract/making.rs"),
            include_str!("contract/reasserting.rs"),
            include_str!("contract/saving.rs"),
        ] {
            for rest in area.split("pub async fn ").skip(1) {
                let name = rest.split('(').next().expect("a name before the parenthesis");
                assert!(this.contains(&format!("    {name},\n")), "{name} is never run");
            }
        }
    }
}

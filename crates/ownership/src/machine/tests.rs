//! Tests of an owner's next operation.

mod leaving;
mod writing;

use super::*;
use crate::Incarnation;

const TTL: Duration = Duration::from_secs(400);
const ME: Incarnation = Incarnation(1);
const OTHER: Incarnation = Incarnation(2);

fn record() -> Record {
    Record {
        owner: Owner { token: Token { counter: 3, random: 33 }, node: ME },
        former: vec![Token { counter: 2, random: 22 }, Token { counter: 1, random: 11 }],
        tenant: "acme".into(),
        principal: crate::Digest([0; 32]),
        revision: "2025-11-25".into(),
        initialize: [].into(),
        state: crate::State::default(),
        status: RecordStatus::Owned,
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An ownership of lease generation 0, the ring of its session, and what its node knows.
struct Fixture {
    ownership: Ownership,
    ring: Vec<Bytes>,
    snapshot: LeaseSnapshot,
    random: u64,
}

fn fixture() -> Fixture {
    fixture_of(record())
}

fn fixture_of(record: Record) -> Fixture {
    let session = SessionId::parse("a-session").unwrap();
    let snapshot = LeaseSnapshot {
        now: 0,
        lease_generation: Some(0),
        failover_generation: 1,
        stabilisation: Stabilisation::Done,
        claimable: Claimable { newest: 1, former: 0 },
        primary: None,
    };
    let ownership = Ownership::new(
        session,
        record,
        Acquired { lease_generation: 0, failover_generation: 1 },
        TTL,
        0,
    );
    Fixture { ownership, ring: Vec::new(), snapshot, random: 100 }
}

fn unavailable() -> Error {
    Error::Unavailable(std::io::ErrorKind::TimedOut.into())
}

/// The store's answer to a claim from `token` of `node`.
fn fenced(counter: u64, random: u64, node: Incarnation) -> Error {
    Error::Fenced(Owner { token: Token { counter, random }, node })
}

fn appended(through: u64) -> OpResult {
    OpResult::Appended(Ok(Appended { through: Some(through) }))
}

impl Fixture {
    /// The session saves its whole state, which is the number of this version.
    fn saves(&mut self, version: u64) {
        let whole = StateChange::Whole(version.to_string().into_bytes().into());
        self.ownership.save_state(version, whole);
    }

    /// The session saves what changed.
    fn changes(&mut self, version: u64, difference: &str) {
        self.ownership.save_state(version, StateChange::Difference(difference.as_bytes().into()));
    }

    fn say(&mut self, entry: &'static str) {
        self.ring.push(Bytes::from_static(entry.as_bytes()));
        let number = self.ring.len() as u64;
        self.ownership.push_entries(number, 1, vec![Bytes::from_static(entry.as_bytes())]);
    }

    /// The next operation, in short.
    #[track_caller]
    fn does(&mut self, expected: &str) {
        self.random += 1;
        let ring = || (1, self.ring.clone());
        let op = self.ownership.next(&self.snapshot, ring, self.random);
        let text = |entries: &[Bytes]| {
            entries.iter().map(|e| String::from_utf8_lossy(e).into_owned()).collect::<String>()
        };
        let did = match op {
            None => "nothing".to_owned(),
            Some(Op::Append(batch)) => format!("append {}{}", batch.first, text(&batch.entries)),
            Some(Op::Reassert(record, batch)) => format!(
                "reassert {} {:?} {}{}",
                record.owner.token.counter,
                record.status,
                batch.first,
                text(&batch.entries)
            ),
            Some(Op::Save { state, .. }) => {
                format!("save {} {}", state.version, lossy(&state.bytes.to_bytes()))
            }
            Some(Op::ExtendState { extension, .. }) => {
                let StateExtension { after, version, bytes } = extension;
                format!("extend {after} to {version} {}", lossy(&bytes))
            }
            Some(Op::Claim { expected: Expected::Token(token), new, .. }) => {
                format!("claim {} from {}", new.token.counter, token.counter)
            }
            Some(Op::Claim { .. }) => "claim what is released".to_owned(),
            Some(Op::Release { token, .. }) => format!("release {}", token.counter),
            Some(Op::End { token }) => format!("end {}", token.counter),
        };
        assert_eq!(did, expected);
    }

    /// Appends one more entry; returns its number.
    #[track_caller]
    fn appends(&mut self, entry: &'static str, prolongs: bool) -> u64 {
        self.say(entry);
        let ring = (1, self.ring.clone());
        let op = self.ownership.next(&self.snapshot, || ring, 0);
        let Some(Op::Append(batch)) = op else { panic!("{op:?}") };
        assert_eq!(batch.prolongs, prolongs, "at {}", self.snapshot.now);
        self.ring.len() as u64
    }

    #[track_caller]
    fn completed<const N: usize>(&mut self, result: OpResult, outcomes: [Outcome; N]) {
        assert_eq!(self.ownership.completed(&self.snapshot, result), outcomes);
    }

    /// The claim in flight succeeds.
    #[track_caller]
    fn claimed(&mut self) {
        let new = self.ownership.token_doubt.sent_claim().expect("a claim is in flight").new;
        let mut record = record();
        record.former.insert(0, self.ownership.token());
        record.owner = new;
        let claimed = Claimed { record, log: Vec::new() };
        self.completed(OpResult::Claimed(Ok(claimed)), [Outcome::Reclaimed(new.token)]);
    }

    fn at(&mut self, now: u64) -> &mut Self {
        self.snapshot.now = now;
        self
    }

    fn may_act(&self) -> bool {
        self.ownership.may_act(self.snapshot.lease_generation, || self.snapshot)
    }
}

#[test]
fn what_the_store_lost_is_reasserted_at_once_with_every_replayable_entry() {
    for forgot in [Error::Missing, Error::Hole { last: None }, fenced(1, 11, OTHER)] {
        let mut fixture = fixture();
        for entry in ["a", "b"] {
            fixture.say(entry);
        }
        fixture.does("append 1ab");
        fixture.completed(appended(2), [Outcome::Through(2)]);
        fixture.say("c");
        fixture.does("append 3c");
        fixture.completed(OpResult::Appended(Err(forgot)), []);
        assert!(fixture.may_act());
        fixture.does("reassert 3 Owned 1abc");
        fixture.completed(appended(3), [Outcome::Through(3)]);
        fixture.does("nothing");
    }
}

#[test]
fn a_failover_makes_the_owner_write_everything_anew_before_it_is_asked_to() {
    let mut fixture = fixture();
    fixture.say("a");
    fixture.does("append 1a");
    fixture.completed(appended(1), [Outcome::Through(1)]);
    (fixture.snapshot.failover_generation, fixture.snapshot.stabilisation) =
        (2, Stabilisation::First);
    assert!(fixture.may_act());
    fixture.does("reassert 3 Owned 1a");
    // There is another one meanwhile.
    fixture.snapshot.failover_generation = 3;
    fixture.completed(appended(1), []);
    fixture.does("reassert 3 Owned 1a");
    fixture.completed(appended(1), []);
    fixture.does("nothing");
}

#[test]
fn after_a_lapse_the_session_is_claimed_again_before_the_owner_acts() {
    let mut fixture = fixture();
    fixture.say("a");
    fixture.snapshot.lease_generation = None;
    assert!(!fixture.may_act());
    fixture.does("nothing");
    fixture.snapshot.lease_generation = Some(1);
    assert!(!fixture.may_act());
    fixture.does("claim 4 from 3");
    assert!(!fixture.may_act());
    fixture.claimed();
    assert!(fixture.may_act());
    fixture.does("reassert 4 Owned 1a");
    fixture.completed(appended(1), [Outcome::Through(1)]);
}

#[test]
fn a_session_that_is_missing_after_a_lapse_is_over() {
    // Also if the store had acknowledged it before the lapse: the session may have been claimed
    // and ended after that.
    for was_acknowledged_before in [false, true] {
        let mut fixture = fixture();
        fixture.say("a");
        if was_acknowledged_before {
            fixture.does("append 1a");
            fixture.completed(OpResult::Appended(Err(Error::Missing)), []);
        }
        fixture.snapshot.lease_generation = Some(1);
        fixture.does("claim 4 from 3");
        fixture.completed(OpResult::Claimed(Err(Error::Missing)), [Outcome::Deposed]);
        fixture.at(1_000_000).does("nothing");
    }
}

#[test]
fn a_session_that_a_failover_lost_is_reasserted_after_a_lapse_too() {
    let mut fixture = fixture();
    fixture.does("nothing");
    fixture.snapshot.lease_generation = Some(1);
    fixture.does("claim 4 from 3");
    // The store failed over while the claim was in flight.
    fixture.snapshot.failover_generation = 2;
    fixture.completed(OpResult::Claimed(Err(Error::Missing)), []);
    fixture.does("reassert 3 Owned 1");
}

#[test]
fn a_release_that_finds_the_session_missing_when_it_is_repeated_is_over() {
    for lease_generation in [0, 1] {
        let mut fixture = fixture();
        fixture.ownership.release_session();
        fixture.does("release 3");
        fixture.completed(OpResult::Done(Err(unavailable())), []);
        fixture.snapshot.lease_generation = Some(lease_generation);
        fixture.at(50).does("release 3");
        fixture.completed(OpResult::Done(Err(Error::Missing)), [Outcome::Deposed]);
    }
}

#[test]
fn a_state_that_a_claim_finds_in_the_record_is_reported_as_saved() {
    let mut fixture = fixture();
    let state = crate::State { version: 7, bytes: (*b"7").into() };
    fixture.saves(7);
    fixture.does("save 7 7");
    // The claim was executed, and its answer was lost.
    fixture.completed(OpResult::Saved(Err(unavailable())), []);
    fixture.snapshot = LeaseSnapshot { now: 9_000, lease_generation: Some(1), ..fixture.snapshot };
    fixture.does("claim 4 from 3");
    let owner = fixture.ownership.token_doubt.sent_claim().expect("a claim is in flight").new;
    let claimed = Claimed { record: Record { owner, state, ..record() }, log: Vec::new() };
    let outcomes = [Outcome::Reclaimed(owner.token), Outcome::Saved(7)];
    fixture.completed(OpResult::Claimed(Ok(claimed)), outcomes);
}

#[test]
fn a_claim_that_took_longer_than_the_lease_is_made_once_more() {
    let mut fixture = fixture();
    fixture.snapshot.lease_generation = Some(1);
    fixture.does("claim 4 from 3");
    fixture.snapshot.lease_generation = Some(2);
    fixture.claimed();
    assert!(!fixture.may_act());
    fixture.does("claim 5 from 4");
    fixture.claimed();
    assert!(fixture.may_act());
    fixture.does("reassert 5 Owned 1");
}

#[test]
fn a_claim_of_unknown_outcome_is_the_same_claim_again() {
    let mut fixture = fixture();
    fixture.snapshot.lease_generation = Some(1);
    fixture.does("claim 4 from 3");
    let first = fixture.ownership.token_doubt.sent_claim().unwrap().new;
    fixture.completed(OpResult::Claimed(Err(unavailable())), []);
    fixture.at(50).does("claim 4 from 3");
    assert_eq!(fixture.ownership.token_doubt.sent_claim().unwrap().new, first);
    // The first had succeeded, and is found by the second as its own.
    fixture.claimed();
    assert!(fixture.may_act());
}

#[test]
fn whoever_finds_another_owner_stops() {
    let mut fixture = fixture();
    fixture.say("a");
    fixture.does("append 1a");
    fixture.completed(OpResult::Appended(Err(fenced(4, 44, OTHER))), [Outcome::Deposed]);
    assert!(!fixture.may_act());
    fixture.say("b");
    fixture.at(1_000_000).does("nothing");
    assert_eq!(fixture.ownership.wake_at(), None);
}

#[test]
fn a_late_claim_of_its_own_is_claimed_from() {
    let mut fixture = fixture();
    fixture.say("a");
    fixture.does("append 1a");
    fixture.completed(OpResult::Appended(Err(fenced(7, 77, ME))), []);
    assert!(!fixture.may_act());
    fixture.does("claim 8 from 7");
    fixture.claimed();
    assert!(fixture.may_act());
    fixture.does("reassert 8 Owned 1a");
}

#[test]
fn a_late_claim_of_its_own_that_the_store_forgot_is_not_claimed_from() {
    // With the record, or with it and all that came after an older one.
    for forgot in [Error::Missing, fenced(1, 11, OTHER)] {
        let mut fixture = fixture();
        fixture.say("a");
        fixture.does("append 1a");
        fixture.completed(OpResult::Appended(Err(fenced(7, 77, ME))), []);
        // The lease lapses, and the store fails over.
        fixture.snapshot =
            LeaseSnapshot { lease_generation: Some(1), failover_generation: 2, ..fixture.snapshot };
        fixture.does("claim 8 from 7");
        fixture.completed(OpResult::Claimed(Err(forgot)), []);
        fixture.at(1_000).does("reassert 3 Owned 1a");
        fixture.completed(appended(1), [Outcome::Through(1)]);
        assert!(!fixture.may_act());
        fixture.does("claim 4 from 3");
        fixture.claimed();
        assert!(fixture.may_act());
    }
}

#[test]
fn a_failover_ends_the_wait_for_another_attempt() {
    let mut fixture = fixture();
    fixture.snapshot.lease_generation = Some(1);
    for now in [0, 50, 150, 350, 750] {
        fixture.at(now).does("claim 4 from 3");
        fixture.completed(OpResult::Claimed(Err(unavailable())), []);
    }
    fixture.at(760).does("nothing");
    assert_eq!(fixture.ownership.wake_at(), Some(1_550));
    fixture.snapshot.failover_generation = 2;
    fixture.does("reassert 3 Owned 1");
    // One that fails is waited for as after a first failure.
    fixture.completed(OpResult::Appended(Err(unavailable())), []);
    fixture.does("nothing");
    assert_eq!(fixture.ownership.wake_at(), Some(810));
}

#[test]
fn an_owner_that_cannot_reassert_acts_only_once_the_store_names_it() {
    let mut fixture = fixture();
    fixture.does("nothing");
    (fixture.snapshot.failover_generation, fixture.snapshot.stabilisation) =
        (2, Stabilisation::First);
    fixture.does("reassert 3 Owned 1");
    fixture.completed(OpResult::Appended(Err(unavailable())), []);
    assert!(fixture.may_act() && !fixture.ownership.is_sure());
    (fixture.snapshot.stabilisation, fixture.snapshot.claimable.newest) =
        (Stabilisation::Second, 2);
    assert!(!fixture.may_act());
    // Nor where the primary that keeps the leases has failed over after that.
    fixture.snapshot.stabilisation = Stabilisation::First;
    assert!(!fixture.may_act());
    fixture.snapshot.stabilisation = Stabilisation::Second;
    fixture.at(50).does("claim 4 from 3");
    // It forgot that this owner claimed the session; another may have since.
    fixture.completed(OpResult::Claimed(Err(fenced(2, 22, OTHER))), []);
    fixture.snapshot.stabilisation = Stabilisation::Done;
    assert!(!fixture.may_act());
    fixture.at(150).does("reassert 3 Owned 1");
    fixture.completed(OpResult::Appended(Err(unavailable())), []);
    fixture.at(350).does("claim 4 from 3");
    fixture.claimed();
    assert!(fixture.may_act() && fixture.ownership.is_sure());
    fixture.does("reassert 4 Owned 1");
    fixture.completed(OpResult::Appended(Err(unavailable())), []);
    fixture.at(400).does("reassert 4 Owned 1");
    fixture.completed(appended(0), []);
    fixture.does("nothing");
}

#[test]
fn a_failover_between_a_claim_and_the_first_operation_is_noticed() {
    let mut fixture = fixture();
    (fixture.snapshot.failover_generation, fixture.snapshot.stabilisation) =
        (2, Stabilisation::Second);
    fixture.ownership.observe(2);
    assert!(!fixture.may_act());
    fixture.does("reassert 3 Owned 1");
    fixture.completed(appended(0), []);
    assert!(fixture.may_act());
}

#[test]
fn a_failover_is_noticed_while_an_operation_is_under_way() {
    let mut fixture = fixture();
    fixture.say("a");
    fixture.does("append 1a");
    (fixture.snapshot.failover_generation, fixture.snapshot.stabilisation) =
        (2, Stabilisation::Second);
    assert!(fixture.ownership.observe(2) && !fixture.ownership.observe(2));
    assert!(!fixture.may_act());
    fixture.completed(OpResult::Appended(Err(unavailable())), []);
    fixture.at(50).does("reassert 3 Owned 1a");
    fixture.completed(appended(1), [Outcome::Through(1)]);
    assert!(fixture.may_act());
}

#[test]
fn a_failover_generation_that_falls_back_leaves_no_doubt() {
    let mut fixture = fixture();
    // While the primary of the session's slot is unknown, the newest generation counts for it.
    (fixture.snapshot.failover_generation, fixture.snapshot.stabilisation) =
        (3, Stabilisation::First);
    fixture.does("reassert 3 Owned 1");
    fixture.completed(OpResult::Appended(Err(unavailable())), []);
    (fixture.snapshot.failover_generation, fixture.snapshot.stabilisation) =
        (2, Stabilisation::Done);
    fixture.at(50).does("claim 4 from 3");
    fixture.completed(OpResult::Claimed(Err(unavailable())), []);
    fixture.at(200).does("reassert 3 Owned 1");
    fixture.completed(appended(0), []);
    fixture.does("claim 4 from 3");
    fixture.claimed();
    fixture.does("reassert 4 Owned 1");
    fixture.completed(appended(0), []);
    fixture.does("nothing");
    assert!(fixture.may_act());
}

#[test]
fn an_owner_in_doubt_does_not_act_during_the_stabilisation_after_another_failover() {
    let mut fixture = fixture();
    (fixture.snapshot.failover_generation, fixture.snapshot.stabilisation) =
        (2, Stabilisation::First);
    fixture.does("reassert 3 Owned 1");
    fixture.completed(OpResult::Appended(Err(unavailable())), []);
    assert!(fixture.may_act());
    // Between the two, the first may have been over for another node, which claimed the session.
    fixture.snapshot.failover_generation = 3;
    fixture.does("reassert 3 Owned 1");
    assert!(!fixture.may_act());
    fixture.completed(appended(0), []);
    assert!(fixture.may_act());
    fixture.snapshot.failover_generation = 4;
    fixture.ownership.observe(4);
    assert!(fixture.may_act());
}

/// The other claim is lost now; the store would refuse it if this owner re-asserted first.
#[test]
fn an_owner_that_may_have_been_replaced_in_a_former_failover_asks_before_it_writes() {
    for releases in [false, true] {
        let mut fixture = fixture();
        if releases {
            fixture.ownership.release_session();
            fixture.does("release 3");
            fixture.completed(OpResult::Done(Err(unavailable())), []);
        }
        fixture.at(50).snapshot.failover_generation = 3;
        fixture.snapshot.stabilisation = Stabilisation::First;
        fixture.snapshot.claimable = Claimable { newest: 2, former: 2 };
        fixture.ownership.observe(3);
        assert!(!fixture.may_act());
        fixture.does("nothing");
        fixture.at(200).snapshot.stabilisation = Stabilisation::Done;
        fixture.snapshot.claimable.newest = 3;
        fixture.does(if releases { "release 3" } else { "claim 4 from 3" });
        let released = OpResult::Done(Err(Error::Missing));
        let claimed = OpResult::Claimed(Err(Error::Missing));
        fixture.completed(if releases { released } else { claimed }, []);
        // The other owner has not re-asserted it.
        fixture.at(400).does("reassert 3 Owned 1");
    }
}

#[test]
fn an_owner_that_reasserted_after_sending_a_claim_acts_only_under_the_claimed_token() {
    let mut fixture = fixture();
    fixture.does("nothing");
    (fixture.snapshot.failover_generation, fixture.snapshot.stabilisation) =
        (2, Stabilisation::Second);
    fixture.does("reassert 3 Owned 1");
    fixture.completed(OpResult::Appended(Err(unavailable())), []);
    fixture.at(50).does("claim 4 from 3");
    fixture.completed(OpResult::Claimed(Err(unavailable())), []);
    fixture.at(150).does("reassert 3 Owned 1");
    fixture.completed(appended(0), []);
    assert!(!fixture.may_act());
    fixture.does("claim 4 from 3");
    fixture.claimed();
    assert!(fixture.may_act());
}

#[test]
fn during_stabilisation_a_lapsed_owner_reasserts_and_claims_only_in_the_second_half() {
    let mut fixture = fixture();
    fixture.does("nothing");
    (fixture.snapshot.failover_generation, fixture.snapshot.stabilisation) =
        (2, Stabilisation::First);
    fixture.snapshot.lease_generation = Some(1);
    fixture.does("reassert 3 Owned 1");
    fixture.completed(OpResult::Appended(Ok(Appended { through: None })), []);
    fixture.does("nothing");
    assert_eq!(fixture.ownership.wake_at(), Some(100));
    assert!(!fixture.may_act());
    fixture.snapshot.stabilisation = Stabilisation::Second;
    fixture.at(100).does("claim 4 from 3");
    fixture.claimed();
    assert!(fixture.may_act());
}

#[test]
fn a_node_without_a_lease_is_not_asked_over_and_over() {
    let mut fixture = fixture();
    fixture.say("a");
    fixture.snapshot.lease_generation = None;
    fixture.at(200_000).does("nothing");
    assert_eq!(fixture.ownership.wake_at(), Some(200_500));
    // But at once when there is one.
    fixture.snapshot.lease_generation = Some(0);
    fixture.at(200_001).does("append 1a");
}

/// Every session of a node has one.
#[test]
fn an_ownership_stays_small() {
    assert!(size_of::<Ownership>() <= 376, "{} bytes", size_of::<Ownership>());
}

//! The operations of a session's ownership, and their results.

use conversation::{Event, OwnerTag};
use ownership::failover::Generation;
use ownership::machine::{LeaseSnapshot, Op, OpResult, Outcome};
use ownership::tombstones::Tombstone;

use super::*;

impl World {
    /// The node's present knowledge of the store that has the session.
    pub(super) fn lease_snapshot(&self, at: Incarnation, _id: &SessionId) -> Option<LeaseSnapshot> {
        let process = self.processes.get(&at)?;
        let now = process.clock(self.now);
        let lease_generation = process.lease_generation(self.now);
        let Generation { number, stabilisation, claimable, primary } = process.generation(self.now);
        Some(LeaseSnapshot {
            now,
            lease_generation,
            failover_generation: number,
            stabilisation,
            claimable,
            primary,
        })
    }

    pub(super) fn operate(&mut self, at: Incarnation, id: &SessionId, owned: &mut Owned) {
        let random = self.random();
        let Some(snapshot) = self.lease_snapshot(at, id) else { return };
        if owned.busy {
            return;
        }
        let Some(ownership) = &mut owned.ownership else { return };
        let session = &owned.session;
        let ring = || {
            let ring = session.replay_buffer();
            (ring.first, ring.entries)
        };
        let Some(op) = ownership.next(&snapshot, ring, random) else { return };
        owned.busy = true;
        let command = match op {
            Op::Append(batch) => Command::Append(batch),
            Op::Reassert(record, batch) => Command::Reassert(record, batch),
            Op::Save { token, state } => Command::Save(id.clone(), token, state),
            Op::ExtendState { token, extension } => {
                Command::ExtendState(id.clone(), token, extension)
            }
            Op::Claim { expected, new, .. } => Command::Claim(id.clone(), expected, new),
            Op::Release { token, .. } => Command::Release(id.clone(), token),
            Op::End { token } => Command::End(id.clone(), token),
        };
        self.send_for(at, command, Purpose::Ownership(id.clone()));
    }

    /// The result of an operation of the ownership.
    pub(crate) fn operation_completed(
        &mut self,
        at: Incarnation,
        id: &SessionId,
        answer: RedisAnswer,
    ) {
        let Some(mut owned) = self.take(at, id) else { return };
        owned.busy = false;
        let result = match answer {
            RedisAnswer::Appended(result) => OpResult::Appended(result),
            RedisAnswer::Saved(result) => OpResult::Saved(result),
            RedisAnswer::Claimed(result) => OpResult::Claimed(result),
            RedisAnswer::Done(result) => OpResult::Done(result),
            _ => return self.put(at, id, owned),
        };
        let Some(snapshot) = self.lease_snapshot(at, id) else { return };
        let Some(ownership) = &mut owned.ownership else { return };
        for outcome in ownership.completed(&snapshot, result) {
            match outcome {
                Outcome::Through(through) => {
                    owned.following.push_back(Event::Appended { through });
                }
                Outcome::Saved(version) => owned.following.push_back(Event::Saved { version }),
                Outcome::Reclaimed(token) => {
                    owned.owner.token = token;
                    self.checker.note_heard_claim(token);
                    let owner_tag = OwnerTag(token.random);
                    // Before any event that happens under the new token.
                    owned.following.push_front(Event::Reclaimed { owner_tag });
                }
                Outcome::Deposed | Outcome::Released | Outcome::Ended => {
                    let name = self.name(at);
                    self.note(|| format!("{name} {}: {outcome:?}", id.as_str()));
                    if outcome == Outcome::Ended
                        && let Some(ownership) = &owned.ownership
                    {
                        let (record, until) =
                            (ownership.tombstone(), snapshot.now + TTL.as_millis() as u64);
                        let failover_generation = ownership.failover_generation();
                        let tombstone =
                            Tombstone::new(id.clone(), record, Some(failover_generation), until);
                        if let Some(process) = self.processes.get_mut(&at) {
                            process.tombstones.keep_tombstone(tombstone, snapshot.now);
                            if process.tombstones.is_newest_due(|_| snapshot.failover_generation) {
                                self.write_tombstones(at);
                            }
                        }
                    }
                    self.let_go(at, id, owned, matches!(outcome, Outcome::Ended));
                    return;
                }
            }
        }
        self.live(at, id, owned);
    }

    /// The session is no longer at this node.
    fn let_go(&mut self, at: Incarnation, id: &SessionId, mut owned: Owned, ended: bool) {
        if ended {
            self.end_told(at, &mut owned, true);
        }
        for event in std::mem::take(&mut owned.following) {
            // The session has not processed this request, so nothing was done for it.
            let (Event::Posted { sink, .. } | Event::Listened { sink, .. }) = event else {
                continue;
            };
            if let Some(sink) = owned.take_sink(sink) {
                let refusal = if ended { Refusal::UnknownSession } else { Refusal::Moved };
                self.say(at, sink, PeerReply::Answer(Answer::Refused(refusal)));
            }
        }
        for sink in owned.sinks {
            self.say(at, sink, PeerReply::Lost);
        }
        self.retry_those_of(at, id);
    }
}

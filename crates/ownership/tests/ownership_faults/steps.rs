//! The steps of a schedule, and their random generation.

use proptest::prelude::*;

use crate::world::NODES;

/// What the network does with an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    Done,
    /// It never arrives.
    Lost,
    /// It is done, and the answer never arrives.
    Unanswered,
    /// It arrives some time after its sender gave it up.
    Late,
    /// It is done and answered, and arrives once more.
    Twice,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The session writes an entry at this node.
    Say(usize),
    /// No acknowledged entry can be replayed any more.
    Trim(usize),
    Save(usize),
    /// The owner performs its next operation.
    Act(usize, Fate),
    /// A delayed operation arrives.
    Arrive(usize),
    /// The node's lease expires, or the node renews it.
    Lapse(usize),
    Renew(usize),
    /// The node claims the session if it may.
    Take(usize, Fate),
    /// The store loses its last few changes, and all owners have their half of stabilisation, in
    /// random order.
    Failover(usize, u64),
    Release(usize),
    End(usize),
    /// The store loses the session, which has one owner. The record of an ended session expires.
    Evict,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 0..NODES;
    let fate = || {
        prop_oneof![
            4 => Just(Fate::Done),
            1 => Just(Fate::Lost),
            1 => Just(Fate::Unanswered),
            1 => Just(Fate::Late),
            1 => Just(Fate::Twice),
        ]
    };
    prop_oneof![
        6 => node().prop_map(Step::Say),
        1 => node().prop_map(Step::Trim),
        1 => node().prop_map(Step::Save),
        10 => (node(), fate()).prop_map(|(node, fate)| Step::Act(node, fate)),
        3 => (0..8_usize).prop_map(Step::Arrive),
        2 => node().prop_map(Step::Lapse),
        3 => node().prop_map(Step::Renew),
        3 => (node(), fate()).prop_map(|(node, fate)| Step::Take(node, fate)),
        1 => (0..6_usize, any::<u64>()).prop_map(|(lost, order)| Step::Failover(lost, order)),
        2 => node().prop_map(Step::Release),
        1 => node().prop_map(Step::End),
        1 => Just(Step::Evict),
        3 => (1..4_000_u64).prop_map(Step::Pass),
    ]
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..80)
}

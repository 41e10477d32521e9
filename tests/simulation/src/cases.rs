//! Schedules that broke earlier versions of the protocol, each with a plan of its own.
//!
//! They are numbered in the order in which they were found. A case fixes the faults and their
//! approximate times. The seed still decides every delay, so each case is run under many seeds.

mod bounds;
mod guards;

use super::client::Do;
use super::faults::Fault;
use super::plan::{Plan, Trigger};
use super::tools::Kind;
use super::wire::{Mishap, Weather};

/// One schedule.
#[derive(Clone, Debug)]
pub struct Case {
    /// The number of the schedule.
    pub number: u32,
    /// What went wrong in an earlier version.
    pub name: &'static str,
    /// The plan under which it would go wrong again.
    pub plan: Plan,
}

fn slow(millis: u64) -> Do {
    Do::Call { kind: Kind::Slow, idempotent: false, millis, steps: 1 }
}

fn steps(millis: u64, steps: u64, idempotent: bool) -> Do {
    Do::Call { kind: Kind::Steps, idempotent, millis, steps }
}

const FAST: Do = Do::Call { kind: Kind::Fast, idempotent: false, millis: 2, steps: 1 };

fn ask(millis: u64) -> Do {
    Do::Call { kind: Kind::Ask, idempotent: false, millis, steps: 1 }
}

fn fail_over(lost: u64) -> Fault {
    Fault::FailOver { lost, ahead: 0 }
}

fn when(command: &'static str, after: u64, fault: Fault) -> Trigger {
    Trigger { command, after, fault }
}

/// One client, whose session is created at the first node, with this script and these faults.
fn plan(script: Vec<(u64, Do, usize)>, faults: Vec<(u64, Fault)>) -> Plan {
    let plan = Plan { clients: 1, script, born_at: Some(0), chat: 0, ..Plan::quiet() };
    plan.with(faults)
}

/// Every schedule of the simulation.
pub fn cases() -> Vec<Case> {
    let mut cases = schedules();
    cases.extend(guards::cases());
    cases.extend(bounds::cases());
    cases
}

fn case(number: u32, name: &'static str, plan: Plan) -> Case {
    Case { number, name, plan }
}

fn schedules() -> Vec<Case> {
    vec![
        case(
            1,
            "a failover forgets a claim, and the next claimant counts to the same number",
            plan(
                vec![
                    (7_000, steps(200, 5, true), 1),
                    (9_000, steps(300, 20, true), 1),
                    (12_500, steps(300, 8, false), 2),
                ],
                vec![(8_000, Fault::Kill(0, 60_000)), (11_500, Fault::Kill(1, 60_000))],
            )
            .on(vec![when("claim", 700, fail_over(900))]),
        ),
        case(
            2,
            "a failover loses the entry that opened a stream, and its owner is healthy",
            plan(
                vec![(7_000, steps(150, 30, false), 1), (7_200, steps(150, 30, true), 2)],
                vec![(7_900, fail_over(800)), (9_400, fail_over(500))],
            ),
        ),
        case(
            3,
            "a failover shows a dead owner before the living one has re-asserted",
            plan(
                vec![
                    (8_400, steps(100, 40, false), 1),
                    (9_900, FAST, 2),
                    (10_000, FAST, 2),
                    (10_300, FAST, 2),
                ],
                vec![(8_000, Fault::Kill(0, 60_000)), (9_800, fail_over(2_000))],
            ),
        ),
        case(
            3,
            "a replica whose clock is ahead shows every lease expired at once",
            plan(
                vec![(7_000, steps(300, 30, false), 1), (9_010, FAST, 2), (9_500, FAST, 1)],
                vec![(9_000, Fault::FailOver { lost: 100, ahead: 20_000 })],
            ),
        ),
        case(
            5,
            "commands run twice, late and out of order",
            plan(
                vec![(7_000, steps(40, 60, false), 1), (7_500, steps(50, 60, true), 2)],
                vec![(
                    7_100,
                    Fault::Weather(
                        Weather {
                            lost: 20,
                            unheard: 30,
                            late: 60,
                            late_by: 3_000,
                            twice: 60,
                            cut_off: None,
                        },
                        5_000,
                    ),
                )],
            ),
        ),
        case(
            6,
            "a claim whose answer is lost is done late, and names a node that forgot it",
            plan(
                vec![(9_500, FAST, 1), (13_000, FAST, 2), (16_000, FAST, 2), (16_500, FAST, 1)],
                vec![
                    (8_000, Fault::Next("claim", Mishap::Late(2_500))),
                    (9_000, Fault::Kill(0, 60_000)),
                ],
            ),
        ),
        case(
            6,
            "a claim is done and its answer is lost",
            plan(
                vec![(9_500, FAST, 1), (13_000, FAST, 2), (16_000, FAST, 1)],
                vec![
                    (8_000, Fault::Next("claim", Mishap::Unheard)),
                    (9_000, Fault::Kill(0, 60_000)),
                ],
            ),
        ),
        case(
            7,
            "what was acknowledged without a log entry is remembered by the next owner",
            plan(
                vec![
                    (7_000, Do::Level, 1),
                    (7_500, Do::Level, 2),
                    (8_500, FAST, 1),
                    (9_000, Do::Level, 1),
                    (10_000, FAST, 2),
                ],
                vec![
                    (7_200, Fault::Next("save", Mishap::Twice(2_000))),
                    (8_000, Fault::Kill(0, 60_000)),
                    (9_500, Fault::Kill(1, 60_000)),
                ],
            ),
        ),
        case(
            7,
            "the answer to a saved change is lost, and the next change follows another version",
            plan(
                vec![
                    (7_000, Do::Level, 1),
                    (7_010, Do::Level, 1),
                    (7_500, Do::Level, 1),
                    (10_000, FAST, 2),
                ],
                vec![
                    (6_900, Fault::Next("save", Mishap::Unheard)),
                    (9_500, Fault::Kill(0, 60_000)),
                ],
            ),
        ),
        case(
            7,
            "a cancelled call is not run again",
            plan(
                vec![(7_000, steps(300, 40, true), 1), (8_000, Do::Cancel, 2), (9_500, FAST, 2)],
                vec![(9_000, Fault::Kill(0, 60_000))],
            ),
        ),
        case(
            8,
            "what was handed to a link is not handed to the next owner as if it were new",
            plan(
                vec![(8_000, slow(1_500), 1), (8_001, slow(1_500), 2), (8_002, slow(200), 1)],
                vec![(8_004, Fault::Kill(0, 60_000))],
            ),
        ),
        case(
            8,
            "an owner is stopped with a call in its hands, and another is asked",
            plan(
                vec![(8_001, slow(600), 1), (8_003, slow(600), 2), (8_100, slow(600), 1)],
                vec![(8_000, Fault::Pause(0, 12_000))],
            ),
        ),
        case(
            9,
            "a firewall reload between healthy nodes kills none of them",
            plan(
                vec![(7_000, steps(200, 30, false), 1), (8_050, FAST, 2), (9_000, FAST, 1)],
                vec![
                    (8_000, Fault::Reset(0, 1)),
                    (8_000, Fault::Reset(1, 2)),
                    (8_001, Fault::Reset(0, 2)),
                    (9_000, Fault::Reset(0, 1)),
                ],
            ),
        ),
        case(
            9,
            "a supervisor is faster than a lease",
            plan(
                vec![(7_000, steps(200, 30, true), 1), (9_000, FAST, 2)],
                vec![(8_000, Fault::Kill(0, 60)), (10_000, Fault::Kill(1, 60))],
            ),
        ),
        case(
            10,
            "an owner that lapsed and came back answers beside whoever claimed",
            plan(
                vec![
                    (15_000, FAST, 1),
                    (15_200, FAST, 0),
                    (15_400, FAST, 1),
                    (15_500, FAST, 0),
                    (17_000, FAST, 0),
                    (17_100, FAST, 2),
                ],
                vec![
                    (8_000, Fault::CutOff(0, 8_000)),
                    (14_500, Fault::Next("claim", Mishap::Late(900))),
                ],
            ),
        ),
        case(
            10,
            "a stopped owner wakes beside its heir",
            plan(
                vec![
                    (7_000, steps(300, 40, false), 1),
                    (8_010, FAST, 2),
                    (16_000, FAST, 0),
                    (17_050, FAST, 0),
                    (17_060, FAST, 1),
                ],
                vec![(8_000, Fault::Pause(0, 9_000))],
            ),
        ),
        case(
            11,
            "one event id never names two payloads",
            plan(
                vec![(7_000, steps(60, 60, true), 1), (9_500, Do::Cut, 1), (11_000, Do::Cut, 1)],
                vec![
                    (8_000, Fault::Next("append", Mishap::Lost)),
                    (8_030, Fault::Kill(0, 3_000)),
                    (9_900, Fault::Next("append", Mishap::Unheard)),
                    (10_000, Fault::Kill(1, 3_000)),
                ],
            ),
        ),
        case(
            12,
            "a late answer does not reach the next owner's question",
            plan(
                vec![
                    (7_000, ask(10), 1),
                    (7_300, ask(10), 2),
                    (9_000, ask(10), 1),
                    (9_050, ask(5), 2),
                ],
                vec![(7_500, Fault::Kill(0, 60_000)), (9_200, Fault::Kill(1, 60_000))],
            ),
        ),
        case(
            13,
            "a chatty stream trims what a quiet one was opened with",
            Plan {
                log_events: 16,
                ..plan(
                    vec![
                        (6_500, slow(6_000), 1),
                        (7_000, steps(30, 60, false), 2),
                        (8_000, steps(30, 60, true), 2),
                    ],
                    vec![(9_500, Fault::Kill(0, 60_000))],
                )
            },
        ),
        case(
            15,
            "a release is done late, and failovers come in its way",
            plan(
                vec![(7_000, steps(200, 6, true), 1), (9_000, FAST, 1), (11_000, FAST, 2)],
                vec![
                    (7_500, Fault::Next("release", Mishap::Late(2_500))),
                    (8_000, Fault::Drain(0)),
                    (12_000, Fault::Next("release", Mishap::Unheard)),
                    (12_500, Fault::Drain(1)),
                    (12_700, fail_over(0)),
                ],
            ),
        ),
        case(
            15,
            "a session sleeps and is woken elsewhere",
            Plan {
                sleep_secs: 2,
                ..plan(
                    vec![
                        (7_000, Do::Level, 1),
                        (11_000, FAST, 2),
                        (16_000, FAST, 1),
                        (18_500, FAST, 0),
                    ],
                    vec![(12_500, Fault::Next("release", Mishap::Late(3_000)))],
                )
            },
        ),
        case(
            16,
            "frames of a former owner come after the stream went on elsewhere",
            plan(
                vec![(7_000, steps(40, 80, false), 1), (8_500, Do::Cut, 1)],
                vec![(8_000, Fault::Part(0, 1, 9_000)), (8_300, Fault::Pause(0, 7_500))],
            ),
        ),
        case(
            17,
            "an ended session does not come back with a failover",
            plan(
                vec![(8_000, Do::Delete, 1), (8_400, Do::Level, 2)],
                vec![(8_050, fail_over(300)), (9_000, Fault::Kill(1, 500))],
            ),
        ),
        case(
            18,
            "a call whose stream is being opened when its owner dies",
            plan(
                vec![(8_000, slow(5_000), 1), (8_002, slow(3_000), 2)],
                vec![(8_000, Fault::Next("append", Mishap::Late(400)))],
            )
            .on(vec![when("append", 0, Fault::Kill(0, 60_000))]),
        ),
        case(
            19,
            "a call that was half told is run again, and its progress still rises",
            plan(
                vec![(7_000, steps(200, 20, true), 1)],
                vec![(9_000, Fault::Kill(0, 60_000)), (10_500, Fault::Kill(1, 500))],
            ),
        ),
        case(
            21,
            "a machine is frozen, and its clock with it",
            plan(
                vec![(7_000, steps(400, 20, false), 1), (9_000, FAST, 1), (17_000, FAST, 0)],
                vec![(8_000, Fault::Freeze(0, 8_500))],
            ),
        ),
        case(
            22,
            "a failover that takes longer than a lease",
            plan(
                vec![(7_000, steps(500, 30, false), 1), (9_000, FAST, 2), (15_000, FAST, 1)],
                vec![(8_000, Fault::Away(8_000)), (15_900, fail_over(200))],
            ),
        ),
        case(
            23,
            "an owner dies after a failover and before it re-asserted",
            plan(
                vec![(7_000, steps(100, 30, false), 1), (9_000, FAST, 2)],
                vec![(8_000, fail_over(400)), (8_001, Fault::Kill(0, 60_000))],
            ),
        ),
        case(
            23,
            "an owner stays with a primary that nobody else has any more",
            Plan {
                needs_replica: true,
                ..plan(
                    vec![(7_000, steps(200, 40, false), 1), (9_000, FAST, 2), (14_000, FAST, 0)],
                    vec![(8_000, Fault::Split { lost: 200, node: 0, millis: 9_000 })],
                )
            },
        ),
        case(
            10,
            "a claim is answered when the claimant's lease is over and another has claimed",
            plan(
                vec![
                    (9_000, FAST, 1),
                    (17_000, FAST, 2),
                    (17_500, FAST, 2),
                    (18_005, FAST, 1),
                    (18_010, FAST, 1),
                    (18_200, FAST, 1),
                    (18_400, FAST, 2),
                ],
                vec![(8_000, Fault::Kill(0, 60_000)), (18_000, Fault::Heal)],
            )
            .on(vec![when("claim", 0, Fault::Pause(1, 9_000))]),
        ),
        case(
            23,
            "a node that stayed with a deposed primary is asked for a newer session",
            Plan {
                needs_replica: true,
                ..plan(
                    vec![
                        (9_000, FAST, 2),
                        (10_000, FAST, 2),
                        (11_000, FAST, 2),
                        (12_000, FAST, 2),
                        (13_000, FAST, 2),
                    ],
                    vec![(300, Fault::Split { lost: 0, node: 2, millis: 15_000 })],
                )
            },
        ),
        case(
            15,
            "a node drains for long whose claim was done and not answered",
            Plan {
                drain: 200_000,
                ..plan(
                    vec![(8_100, FAST, 1), (12_000, FAST, 1), (14_000, FAST, 2)],
                    vec![
                        (7_000, Fault::Next("claim", Mishap::Unheard)),
                        (8_000, Fault::Kill(0, 60_000)),
                    ],
                )
                .on(vec![when("claim", 0, Fault::Drain(1))])
            },
        ),
        case(
            23,
            "an owner is gone whose record was evicted",
            plan(
                vec![(7_000, steps(200, 30, true), 1), (9_000, FAST, 1)],
                vec![
                    (8_000, Fault::Evict { only_log: false }),
                    (10_000, Fault::Evict { only_log: true }),
                ],
            ),
        ),
    ]
}

//! Schedules in which only one rule prevents an error, or two rules of which each hides the other.
//! Also the effects of a Redis Cluster, and of a script that fails, on a session.

use super::*;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            4,
            "scripts fail half way, and the last one under an owner that dies",
            plan(
                vec![
                    (7_000, steps(20, 150, true), 1),
                    (7_050, steps(30, 60, false), 2),
                    (7_200, Do::Level, 2),
                    (9_500, FAST, 1),
                ],
                vec![
                    (7_100, Fault::Next("append", Mishap::Half)),
                    (7_300, Fault::Next("append", Mishap::Half)),
                    (7_800, fail_over(300)),
                    (7_800, Fault::Next("reassert", Mishap::Half)),
                    (8_950, Fault::Next("append", Mishap::Half)),
                    (9_000, Fault::Kill(0, 60_000)),
                    (9_000, Fault::Next("claim", Mishap::Half)),
                ],
            ),
        ),
        case(
            9,
            "a firewall is loaded anew between two nodes, and a third has links to both",
            plan(
                vec![(7_000, steps(200, 30, false), 1), (8_050, FAST, 2), (9_000, FAST, 1)],
                vec![(8_000, Fault::Reload(0, 1, 500))],
            ),
        ),
        case(
            9,
            "a node cannot renew and one peer cannot reach it, and a third has a link to it",
            plan(
                vec![(7_000, steps(200, 30, false), 1), (10_200, FAST, 2)],
                vec![(7_600, Fault::CutOff(0, 4_000)), (8_000, Fault::Reload(0, 1, 4_000))],
            ),
        ),
        case(
            9,
            "a node that lost its link cannot ask whether it was marked dead",
            Plan {
                nodes: 2,
                ..plan(
                    vec![
                        (7_000, steps(200, 30, false), 0),
                        (9_800, FAST, 0),
                        (9_900, FAST, 1),
                        (11_000, FAST, 0),
                        (11_100, FAST, 1),
                    ],
                    vec![(7_600, Fault::CutOff(0, 4_000)), (8_000, Fault::Reload(0, 1, 4_000))],
                )
            },
        ),
        case(
            9,
            "two nodes are out of each other's reach for long, and then refuse connections",
            Plan {
                nodes: 2,
                ..plan(
                    vec![(7_000, steps(200, 30, false), 0), (12_000, FAST, 1)],
                    vec![(8_000, Fault::Part(0, 1, 4_000)), (11_900, Fault::Reload(0, 1, 3_000))],
                )
            },
        ),
        case(
            9,
            "the only two nodes cannot reach each other for longer than a renewal takes",
            Plan {
                nodes: 2,
                ..plan(
                    vec![(7_000, steps(200, 30, false), 0), (9_000, FAST, 1)],
                    vec![(8_000, Fault::Reload(0, 1, 6_000))],
                )
            },
        ),
        case(
            9,
            "whoever had a link to a killed process says at once that there is none",
            Plan {
                answers_within: 600,
                ..plan(vec![(8_310, FAST, 1)], vec![(8_300, Fault::Kill(0, 60_000))])
            },
        ),
        case(
            9,
            "two processes that are killed at once list links to each other",
            Plan {
                answers_within: 600,
                ..plan(
                    vec![(8_310, FAST, 2)],
                    vec![(8_300, Fault::Kill(0, 60_000)), (8_300, Fault::Kill(1, 60_000))],
                )
            },
        ),
        case(
            10,
            "what was brought to a node waits there while that is cut off for long",
            Plan {
                answers_within: 20_000,
                ..plan(
                    vec![(9_000, slow(30_000), 1)],
                    vec![(8_000, Fault::CutOff(0, 50_000)), (60_000, Fault::Fair)],
                )
            },
        ),
        case(
            14,
            "a stream is silent for longer than the keys of its session stand",
            Plan {
                ttl: 6_000,
                ..plan(
                    vec![(7_000, slow(20_000), 1), (20_100, FAST, 2)],
                    vec![(20_000, Fault::Kill(0, 60_000))],
                )
            },
        ),
        case(
            14,
            "a session is idle for longer than its keys stand",
            Plan { ttl: 6_000, ..plan(vec![(20_000, FAST, 1)], Vec::new()) },
        ),
        case(
            15,
            "who was cut off with a release under way comes back before its heir is put back",
            plan(
                vec![
                    (13_400, steps(100, 3, false), 1),
                    (14_700, FAST, 2),
                    (14_800, FAST, 2),
                    (14_900, FAST, 2),
                    (15_000, FAST, 2),
                    (15_050, FAST, 2),
                    (15_100, FAST, 2),
                    (15_150, FAST, 2),
                ],
                vec![
                    (8_000, Fault::CutOff(0, 6_260)),
                    (8_050, Fault::Drain(0)),
                    (14_250, fail_over(950)),
                    // A node that loses a link renews and reads the nodes at once; the new owner
                    // does not.
                    (14_300, Fault::Reset(0, 2)),
                ],
            ),
        ),
        case(
            16,
            "a former owner says that it has lost a session whose call is run elsewhere",
            plan(
                vec![(9_000, READ, 1)],
                vec![
                    (8_000, Fault::CutOff(0, 5_200)),
                    (13_500, Fault::Part(0, 1, 880)),
                    // The former owner renews at once.
                    (13_202, Fault::Reset(0, 2)),
                ],
            ),
        ),
        case(
            17,
            "an owner dies that was asked for the end and could not write it",
            plan(
                vec![(8_000, Do::Delete, 1)],
                vec![(7_900, Fault::Next("end", Mishap::Lost)), (8_030, Fault::Kill(0, 60_000))],
            ),
        ),
        case(
            17,
            "an owner whose claim was forgotten cannot write anew, and its heir ends the session",
            plan(
                vec![(8_010, FAST, 1), (12_600, FAST, 2), (13_200, Do::Delete, 2)],
                vec![
                    (8_000, Fault::Kill(0, 60_000)),
                    (8_500, Fault::Full(30_000)),
                    (8_600, fail_over(550)),
                ],
            ),
        ),
        case(
            17,
            "a deposed primary writes an end when its owner has seen the failover",
            plan(
                vec![(8_000, Do::Delete, 0)],
                vec![
                    (7_900, Fault::Next("end", Mishap::Late(900))),
                    (8_100, Fault::Split { lost: 0, node: 2, millis: 6_000 }),
                    // A node that loses a link renews and reads the nodes at once.
                    (8_200, Fault::Reset(0, 2)),
                ],
            ),
        ),
        case(
            20,
            "the slot of a session moves while its owner dies and a stream is opened",
            plan(
                vec![
                    (7_600, slow(3_000), 1),
                    (7_700, Do::Level, 2),
                    (8_100, FAST, 1),
                    (9_000, slow(1_000), 2),
                ],
                vec![(7_500, Fault::Move(5_000)), (8_000, Fault::Kill(0, 60_000))],
            ),
        ),
    ]
}

/// Sends nothing for long, and may be run again.
const READ: Do = Do::Call { kind: Kind::Slow, idempotent: true, millis: 20_000, steps: 1 };

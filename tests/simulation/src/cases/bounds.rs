//! Schedules of the promises to each client: prompt answers where nothing goes wrong, streams that
//! are trimmed, and changes that the store does not acknowledge in time.

use super::*;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            24,
            "nothing goes wrong, and each answer comes at once",
            Plan {
                answers_within: 3_000,
                ..plan(
                    vec![(7_000, steps(200, 5, false), 1), (7_100, slow(600), 2), (7_200, FAST, 0)],
                    Vec::new(),
                )
            },
        ),
        case(
            25,
            "a stream is trimmed while its client is away",
            Plan {
                log_events: 8,
                ..plan(
                    vec![
                        (7_000, steps(400, 12, false), 1),
                        (7_100, steps(10, 150, false), 2),
                        (7_900, Do::Cut, 1),
                        (9_000, steps(10, 60, false), 2),
                        (9_500, Do::Cut, 1),
                    ],
                    Vec::new(),
                )
            },
        ),
        case(
            26,
            "the head of a quiet stream is trimmed, and its owner dies",
            Plan {
                log_events: 8,
                ..plan(
                    vec![
                        (6_500, slow(8_000), 1),
                        (7_500, steps(10, 60, false), 2),
                        (9_400, Do::Cut, 1),
                    ],
                    vec![(9_500, Fault::Kill(0, 60_000))],
                )
            },
        ),
        case(
            27,
            "the store takes a change neither in time nor before the owner dies",
            plan(
                vec![(8_200, Do::Level, 1), (50_000, FAST, 2)],
                vec![(8_000, Fault::Full(38_000)), (34_500, Fault::Kill(0, 60_000))],
            ),
        ),
        case(
            28,
            "the store takes an end neither in time nor before the owner dies",
            plan(
                vec![(8_200, Do::Delete, 1)],
                vec![(8_000, Fault::Move(14_000)), (19_500, Fault::Kill(0, 60_000))],
            ),
        ),
        case(
            29,
            "a call is cancelled whose connection to its owner is lost, and the owner dies",
            plan(
                vec![(8_000, READ, 1), (8_060, Do::Cancel, 2), (14_000, FAST, 2)],
                vec![(8_030, Fault::Part(0, 1, 60_000)), (8_200, Fault::Kill(0, 60_000))],
            ),
        ),
        case(
            29,
            "a call is cancelled while another change is saved, and its owner dies",
            plan(
                vec![
                    (8_000, READ, 1),
                    (8_040, Do::Level, 2),
                    (8_080, Do::Cancel, 2),
                    (14_000, FAST, 2),
                ],
                vec![
                    (8_020, Fault::Next("save", Mishap::Late(150))),
                    (8_030, Fault::Part(0, 1, 60_000)),
                    (8_500, Fault::Kill(0, 60_000)),
                ],
            ),
        ),
        case(
            30,
            "events are trimmed before the store holds them, and their owner dies",
            Plan {
                log_events: 8,
                ..plan(
                    vec![(7_000, steps(20, 100, true), 1)],
                    vec![
                        (7_500, Fault::Next("append", Mishap::Late(900))),
                        (8_200, Fault::Kill(0, 60_000)),
                    ],
                )
            },
        ),
        case(
            31,
            "the log of a session is evicted, and each answer comes at once",
            Plan {
                answers_within: 6_000,
                ..plan(
                    vec![(7_000, steps(200, 10, false), 1), (7_500, steps(200, 5, true), 2)],
                    vec![(7_800, Fault::Evict { only_log: true })],
                )
            },
        ),
        case(
            32,
            "a stream is opened while an append is slow, and its owner dies",
            plan(
                vec![
                    (7_000, steps(20, 45, false), 1),
                    (7_650, slow(6_000), 2),
                    (9_400, Do::Cut, 1),
                ],
                vec![
                    (7_880, Fault::Next("append", Mishap::Late(600))),
                    (9_500, Fault::Kill(0, 60_000)),
                ],
            ),
        ),
        case(
            33,
            "the append of a cancellation is lost, and its owner dies",
            plan(
                vec![(7_000, steps(300, 40, true), 1), (8_000, Do::Cancel, 2), (9_500, FAST, 2)],
                vec![(7_900, Fault::Next("append", Mishap::Lost)), (8_150, Fault::Kill(0, 60_000))],
            ),
        ),
        case(
            35,
            "a session is deleted at another node while its client listens",
            plan(vec![(13_000, Do::Listen, 0), (14_000, Do::Delete, 1)], vec![]),
        ),
        case(
            36,
            "Redis is away for longer than a lease, and one node renews later than the others",
            Plan {
                keeps_owners: true,
                ..plan(
                    vec![(7_000, steps(200, 20, false), 1), (7_500, steps(200, 5, true), 2)],
                    vec![(8_000, Fault::CutOff(0, 8_000)), (8_100, Fault::Away(6_900))],
                )
            },
        ),
        case(
            34,
            "a call ends at its owner while a firewall parts it from the node that asked",
            plan(
                vec![(8_000, slow(700), 1), (14_000, FAST, 2)],
                vec![(8_300, Fault::Reload(0, 1, 1_500))],
            ),
        ),
        case(
            37,
            "a client is asked on its GET stream, and its owner dies before the state is saved",
            plan(
                vec![(7_000, Do::Listen, 2), (8_000, ASK, 1), (14_000, FAST, 2)],
                vec![
                    (8_020, Fault::Reset(0, 1)),
                    (8_020, Fault::Part(0, 1, 60_000)),
                    // The second save is sent when all waiting changes may be sent.
                    (8_030, Fault::Next("save", Mishap::Lost)),
                    (8_030, Fault::Next("save", Mishap::Lost)),
                    (9_900, Fault::Kill(0, 60_000)),
                ],
            ),
        ),
        case(
            38,
            "a client that does not listen is asked for a call whose connection was lost",
            Plan {
                answers_within: 9_000,
                ..plan(vec![(8_000, ASK, 1)], vec![(8_020, Fault::Part(0, 1, 1_500))])
            },
        ),
    ]
}

/// Asks its client a question, and may be run again.
const ASK: Do = Do::Call { kind: Kind::Ask, idempotent: true, millis: 300, steps: 1 };

/// Sends nothing for long, and may be run again.
const READ: Do = Do::Call { kind: Kind::Slow, idempotent: true, millis: 5_000, steps: 1 };

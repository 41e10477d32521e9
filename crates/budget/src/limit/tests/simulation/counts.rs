//! Clusters whose clients hold far less than a count allows, as sessions: none is refused.

use super::*;

struct CountNode {
    own: CountOfNode,
    owner: CountOwner,
    /// When what is held ends.
    held: Vec<u64>,
    waiting: VecDeque<u64>,
    next_report: u64,
    reported: Option<u64>,
    grants: VecDeque<(u64, u64, Grant)>,
}

/// Clients of three nodes that take and give back, at random.
struct Counts {
    max: u64,
    /// How many arrive at each node for each second, and how long they are held.
    arrivals: [f64; 3],
    held_ms: u64,
    /// A node that ends or starts at a time.
    change: Option<(u64, usize, bool)>,
    nodes: Vec<CountNode>,
    random: Random,
    refused: Vec<(u64, usize)>,
    most: u64,
}

impl Counts {
    fn new(max: u64, arrivals: [f64; 3], held_ms: u64, seed: u64) -> Self {
        let node = |at: u64| CountNode {
            own: CountOfNode::new(max, 3, ms(0)),
            owner: CountOwner::new(ms(0)),
            held: Vec::new(),
            waiting: VecDeque::new(),
            next_report: 30 * at,
            reported: None,
            grants: VecDeque::new(),
        };
        let nodes = (0..3).map(node).collect();
        let random = Random(0x9e37_79b9 * (seed + 1));
        Self { max, arrivals, held_ms, change: None, nodes, random, refused: Vec::new(), most: 0 }
    }

    fn is_up(&self, node: usize, at: u64) -> bool {
        self.change.is_none_or(|(when, who, starts)| who != node || (at >= when) == starts)
    }

    fn run(&mut self, until: u64) {
        for at in (0..until).step_by(STEP_MS as usize) {
            let members: Vec<Member> = (0..3)
                .filter(|node| self.is_up(*node, at))
                .map(|node| Member { node: node as u64, is_linked: true })
                .collect();
            for node in 0..3 {
                if self.is_up(node, at) {
                    self.step(node, &members, at);
                } else {
                    self.nodes[node].held.clear();
                }
            }
            let held = self.nodes.iter().map(|node| node.held.len() as u64).sum();
            self.most = self.most.max(held);
        }
    }

    fn step(&mut self, node: usize, members: &[Member], at: u64) {
        let now = ms(at);
        let chance = f64::from(self.random.next() % 1_000);
        let arrives = chance < self.arrivals[node] * STEP_MS as f64;
        let held_ms = u64::from(self.random.next()) % (2 * self.held_ms) + STEP_MS;
        let this = &mut self.nodes[node];
        let before = this.held.len();
        this.held.retain(|end| *end > at);
        (this.held.len()..before).for_each(|_| this.own.give_back(now));
        let mut trying = std::mem::take(&mut this.waiting);
        let mut has_share = false;
        while this.grants.front().is_some_and(|(arrives, ..)| *arrives <= at)
            && let Some((_, reported_at, grant)) = this.grants.pop_front()
        {
            this.own.grant(grant, ms(reported_at), now);
            has_share = true;
        }
        trying.extend(arrives.then_some(at));
        for came in trying {
            let is_late = came + 100 <= at;
            if came < at && !has_share && !is_late {
                this.waiting.push_back(came);
                continue;
            }
            match this.own.take(now) {
                Ok(()) => this.held.push(at + held_ms),
                Err(Refused::Wait) if !is_late => this.waiting.push_back(came),
                Err(_) => self.refused.push((at, node)),
            }
        }
        let is_wanted =
            this.own.wants_share() && this.reported.is_none_or(|reported| reported + 50 <= at);
        let is_round = this.next_report <= at;
        if is_round {
            this.next_report = at + 100;
            this.own.change(self.max, members.len(), now);
        }
        if !is_round && !is_wanted {
            return;
        }
        let Some(report) = this.own.report(now) else { return };
        this.reported = Some(at);
        let owner = owner_of(7, members.iter().map(|member| member.node)).unwrap() as usize;
        let machine = &mut self.nodes[owner].owner;
        if machine.is_forgettable(now) {
            *machine = CountOwner::new(now);
        }
        let grant = machine.report(node as u64, report, self.max, members, now);
        let delay = if owner == node { 0 } else { u64::from(self.random.next() % 20) };
        self.nodes[node].grants.push_back((at + delay, at, grant));
    }
}

/// Limits, arrivals at each node, and how long things are held: far below the limit.
const BELOW: [(u64, [f64; 3], u64); 5] = [
    (100, [1.0, 1.0, 1.0], 3_000),
    (100, [10.0, 0.1, 0.3], 1_500),
    (1_000, [0.1, 0.1, 20.0], 5_000),
    (20, [0.3, 0.3, 0.3], 2_000),
    (20, [0.0, 0.05, 0.5], 200),
];

#[track_caller]
fn check(mut counts: Counts, except: std::ops::Range<u64>) {
    counts.run(60_000);
    let refused: Vec<_> = counts.refused.iter().filter(|(at, _)| !except.contains(at)).collect();
    let Counts { max, most, change, .. } = counts;
    assert!(most <= max / 2, "{most} of {max} is not far below it");
    assert!(refused.is_empty(), "{refused:?} of {max}: {change:?}");
}

#[test]
fn nothing_is_refused_far_below_a_count() {
    for (max, arrivals, held_ms) in BELOW {
        for seed in 0..6 {
            check(Counts::new(max, arrivals, held_ms, seed), 0..0);
        }
    }
}

#[test]
fn a_node_that_starts_or_ends_costs_little_far_below_a_count() {
    for (max, arrivals, held_ms) in BELOW {
        for (node, starts) in (0..3).flat_map(|node| [(node, true), (node, false)]) {
            for seed in 0..3 {
                let mut counts = Counts::new(max, arrivals, held_ms, seed);
                counts.change = Some((20_000, node, starts));
                check(counts, 20_000..20_500);
            }
        }
    }
}

/// The owner keeps one that is free for the first node that needs it, and no node keeps it from others.
#[test]
fn each_node_can_have_the_whole_of_a_count() {
    for max in [1, 2, 5, 30] {
        for node in 0..3 {
            let mut arrivals = [0.0; 3];
            arrivals[node] = 40.0;
            let mut counts = Counts::new(max, arrivals, 60_000, 1);
            counts.run(8_000);
            assert_eq!(counts.most, max, "at node {node}");
        }
    }
}

//! The parameters of one run: the numbers of nodes and clients, the faults with their times, and
//! the times of the protocol.

use super::client::Do;
use super::faults::{Fault, random_faults};
use super::rng::Rng;

/// The parameters of one run. All times are in milliseconds.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) nodes: usize,
    pub(super) clients: usize,
    pub(super) faults: Vec<(u64, Fault)>,
    /// Faults that occur so long after Redis first executed such a command. One at a time, in
    /// order.
    pub(super) triggers: Vec<Trigger>,
    /// The actions of the one client, if the client is scripted.
    pub(super) script: Vec<(u64, Do, usize)>,
    /// From here on there are no faults, and clients start no new calls.
    pub(super) calm_at: u64,
    /// From here on each client sends a request for its session to each node.
    pub(super) probe_at: u64,
    pub(super) ends_at: u64,
    /// The largest error of the rate of a clock, in millionths.
    pub(super) drift: u64,
    pub(super) lease: u64,
    pub(super) renew: u64,
    pub(super) margin: u64,
    pub(super) stabilisation: u64,
    pub(super) hold: u64,
    /// How long a process waits for an answer of Redis.
    pub(super) redis_patience: u64,
    /// How long a peer may send nothing.
    pub(super) silence: u64,
    pub(super) drain: u64,
    pub(super) needs_replica: bool,
    /// How many links of a killed process its system resets, in percent, as it does if the process
    /// left bytes unread. It closes the other links in order.
    pub(super) resets: u64,
    /// How long a session is idle before it leaves memory; 0 for never.
    pub(super) sleep_secs: u64,
    /// The node at which clients create their sessions; any node, if it is not given.
    pub(super) born_at: Option<usize>,
    /// How long records and logs are kept without a refresh.
    pub(super) ttl: u64,
    /// How long a client waits at most for the final response to a call.
    pub(super) answers_within: u64,
    /// No fault of the run may cost a session its owner.
    pub(super) keeps_owners: bool,
    /// How many entries of a log can be replayed.
    pub(super) log_events: usize,
    /// How often instances of the tenant's server send a message of their own; 0 for never.
    pub(super) chat: u64,
}

/// A fault that occurs after Redis has executed a command.
#[derive(Clone, Debug)]
pub(super) struct Trigger {
    /// How the command begins in the trace.
    pub(super) command: &'static str,
    pub(super) after: u64,
    pub(super) fault: Fault,
}

/// How long the final response to a call may take, whatever faults a seed selects.
const ANSWERS_WITHIN: u64 = 75_000;

/// How long a probe may take.
pub(super) const PROBE: u64 = 4_000;

impl Plan {
    /// Three nodes without faults.
    pub fn quiet() -> Self {
        let (renew, margin) = (1_000, 1_000);
        let calm_at = 30_000;
        Self {
            nodes: 3,
            clients: 3,
            faults: Vec::new(),
            triggers: Vec::new(),
            script: Vec::new(),
            calm_at,
            probe_at: 0,
            ends_at: 0,
            drift: 10_000,
            lease: 6_000,
            renew,
            margin,
            stabilisation: 2 * renew + margin,
            hold: 25_000,
            redis_patience: 1_000,
            silence: 900,
            drain: 2_000,
            needs_replica: false,
            resets: 0,
            sleep_secs: 0,
            born_at: None,
            ttl: 3_600_000,
            answers_within: ANSWERS_WITHIN,
            keeps_owners: false,
            log_events: 1_024,
            chat: 700,
        }
        .calm_from(calm_at)
    }

    /// The plan of a seed, with random faults.
    pub(super) fn random(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x005E_ED0F_F417);
        let mut plan = Self {
            nodes: if rng.chance(15) { 2 } else { 3 },
            clients: rng.between(1, 4) as usize,
            needs_replica: rng.chance(50),
            resets: 20,
            sleep_secs: if rng.chance(25) { rng.between(2, 6) } else { 0 },
            ..Self::quiet()
        };
        plan.faults = random_faults(&mut rng, &plan);
        plan
    }

    /// These faults occur at these times. Afterwards there are no faults.
    pub(super) fn with(self, faults: impl IntoIterator<Item = (u64, Fault)>) -> Self {
        let faults: Vec<_> = faults.into_iter().collect();
        let script = self.script.iter().map(|(at, ..)| *at);
        let last = faults.iter().map(|(at, _)| *at).chain(script).max().unwrap_or(0);
        Self { faults, ..self }.calm_from((last + 8_000).max(20_000))
    }

    /// These faults occur after commands of Redis. Afterwards there are no faults.
    pub(super) fn on(self, triggers: Vec<Trigger>) -> Self {
        Self { triggers, ..self }
    }

    fn calm_from(self, calm_at: u64) -> Self {
        // Long enough for leases, stabilisation, the hold time, and the last requests.
        let probe_at = calm_at + 50_000;
        let ends_at = probe_at + PROBE * 4;
        Self { calm_at, probe_at, ends_at, ..self }
    }

    /// The node that a client with a probe connects to now; `None` before the probes begin.
    pub(super) fn probe_of(&self, now: u64, client: usize) -> Option<usize> {
        let since = now.checked_sub(self.probe_at)?;
        Some((since / PROBE) as usize + client)
    }
}

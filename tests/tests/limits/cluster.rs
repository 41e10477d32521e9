//! Clusters whose clients send three times the limit, while faults happen to the nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;
use tests::Setup;
use tests::mcp::Client;
use tests::recorded::{Recorded, reaches};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{NEWEST, limited};

/// The limit of the tenant, in requests for each second.
const LIMIT: u32 = 60;

/// The requests for each second that clients send to each node: three times the limit.
const DEMANDS: [u32; 3] = [126, 45, 9];

/// The time in which each count is of the limit.
const WINDOW: Duration = Duration::from_secs(10);

/// By then the burst is used.
const BURST_OVER: Duration = Duration::from_secs(3);

/// How long a request may take. A frozen node answers none.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the nodes are watched without requests.
const QUIET: Duration = Duration::from_secs(2);

fn setup() -> Setup {
    Setup::config(limited(&format!("[tenants.demo.rates.all]\nrate = '{LIMIT}/s'\nburst = 60")))
}

/// Clients that send to a cluster, each at its own pace, to the node of its session or to another one if
/// that is down.
struct Load {
    began: Instant,
    down: Arc<[AtomicBool]>,
    senders: JoinSet<Result<Vec<(Duration, usize)>>>,
}

impl Load {
    /// Clients of the first three nodes, which send for so long.
    async fn start(cluster: &Recorded, lasts: Duration) -> Result<Self> {
        let mut clients = Vec::new();
        for node in 0..cluster.nodes.len() {
            let client = cluster.open(node, NEWEST).await?.keeping_connections();
            clients.push(Arc::new(client));
        }
        let down: Arc<[AtomicBool]> = clients.iter().map(|_| AtomicBool::new(false)).collect();
        let (began, mut senders) = (Instant::now(), JoinSet::new());
        for (node, demand) in DEMANDS.into_iter().enumerate() {
            let until = began + lasts;
            senders.spawn(send(node, demand, clients.clone(), Arc::clone(&down), began, until));
        }
        Ok(Self { began, down, senders })
    }

    async fn until(&self, at: Duration) {
        sleep(at.saturating_sub(self.began.elapsed())).await;
    }

    /// When each result arrived, and from which node.
    async fn results(mut self) -> Result<Vec<(Duration, usize)>> {
        let mut all = Vec::new();
        while let Some(results) = self.senders.join_next().await {
            all.extend(results??);
        }
        Ok(all)
    }
}

/// Sends pings at a pace until the end. Returns when results arrived.
async fn send(
    node: usize,
    demand: u32,
    clients: Vec<Arc<Client>>,
    down: Arc<[AtomicBool]>,
    began: Instant,
    until: Instant,
) -> Result<Vec<(Duration, usize)>> {
    let mut requests = JoinSet::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / demand);
    let mut results = Vec::new();
    let count = clients.len();
    while Instant::now() < until {
        ticks.tick().await;
        let is_up = |at: &usize| !down[*at].load(Ordering::Relaxed);
        let at = (0..count).map(|step| (node + step) % count).find(is_up).context("no node")?;
        let client = Arc::clone(&clients[at]);
        requests.spawn(async move {
            let ping = client.ask(client.message("ping", json!({})));
            let answer = tokio::time::timeout(PATIENCE, ping).await.ok()?.ok()?;
            answer.get("result").map(|_| (began.elapsed(), at))
        });
        while let Some(result) = requests.try_join_next() {
            results.extend(result?);
        }
    }
    while let Some(result) = requests.join_next().await {
        results.extend(result?);
    }
    Ok(results)
}

/// The running node that owns the limit.
async fn owner(cluster: &Recorded) -> Result<usize> {
    for (at, node) in cluster.nodes.iter().enumerate() {
        if let Some(node) = node
            && node.metric("roundhouse_limits_owned").await? == Some(1.0)
        {
            return Ok(at);
        }
    }
    anyhow::bail!("no node owns the limit")
}

/// The number of commands that Redis has got.
fn commands(cluster: &Recorded) -> Result<u64> {
    let info = cluster.redis.answer("INFO stats")?;
    let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    Ok(line.context("no number of commands")?.trim().parse()?)
}

/// Checks what was admitted in each 10 seconds between two times.
fn check_windows(
    results: &[(Duration, usize)],
    span: std::ops::Range<Duration>,
    range: std::ops::RangeInclusive<f64>,
) -> Result<()> {
    let mut from = span.start;
    let mut parts = Vec::new();
    while from + WINDOW <= span.end {
        let count = results.iter().filter(|(at, _)| (from..from + WINDOW).contains(at)).count();
        parts.push(count as f64 / f64::from(LIMIT * 10));
        from += Duration::from_millis(500);
    }
    ensure!(
        !parts.is_empty() && parts.iter().all(|part| range.contains(part)),
        "{span:?}: {parts:?}"
    );
    Ok(())
}

/// One cluster, so that the windows of its faults overlap: the owner of the limit is killed, and later the
/// next owner is frozen. Three nodes are left with uneven load.
#[tokio::test]
async fn nodes_admit_the_limit_when_its_owner_is_killed_and_a_part_when_the_next_is_frozen()
-> Result<()> {
    let [killed, frozen, end] = [6, 17, 24].map(Duration::from_secs);
    let mut cluster = Recorded::start([setup(), setup(), setup(), setup()]).await?;
    let before = commands(&cluster)?;
    sleep(QUIET).await;
    let quiet = (commands(&cluster)? - before) as f64 / QUIET.as_secs_f64();
    let load = Load::start(&cluster, end).await?;
    let before = commands(&cluster)?;
    load.until(killed).await;
    let busy = (commands(&cluster)? - before) as f64 / killed.as_secs_f64();
    let owner_before = owner(&cluster).await?;
    cluster.kill(owner_before)?;
    load.down[owner_before].store(true, Ordering::Relaxed);
    load.until(frozen).await;
    let owner_after = owner(&cluster).await?;
    cluster.node(owner_after)?.signal(Signal::STOP)?;
    let results = load.results().await?;
    // Leases are renewed in any case. There are 180 requests a second.
    ensure!(busy < quiet * 1.2 + 10.0, "{busy} commands a second, and {quiet} without requests");
    check_windows(&results, BURST_OVER..frozen, 0.95..=1.05)?;
    check_windows(&results, killed..end, 0.3..=1.05)
}

/// The others admit what is not kept back for the node that is cut off, until they know that its lease has
/// ended; then all of the limit.
#[tokio::test]
async fn long_a_node_cut_off_from_peers_and_redis_costs_a_part_until_its_lease_ends() -> Result<()>
{
    const CUT_OFF: usize = 2;
    let [cut, lease_over, end] = [6, 13, 24].map(Duration::from_secs);
    let (cluster, gates) = Recorded::start_separable::<3>(setup).await?;
    let load = Load::start(&cluster, end).await?;
    load.until(cut).await;
    let process = cluster.node(CUT_OFF)?.pid();
    for (node, gate) in gates.iter().enumerate() {
        match node < CUT_OFF {
            true => gate.cut_off(process),
            false => gate.close(false),
        }
    }
    for node in 0..CUT_OFF {
        reaches(cluster.node(node)?, "roundhouse_peer_links", |links| links == 1.0).await?;
    }
    let results = load.results().await?;
    let is_late = |(at, node): &(Duration, usize)| *node == CUT_OFF && *at > lease_over;
    ensure!(!results.iter().any(is_late), "it served clients without a lease");
    check_windows(&results, BURST_OVER..end, 0.3..=1.05)?;
    check_windows(&results, lease_over..end, 0.95..=1.05)
}

//! A Redis Cluster of six servers: three primaries, each with a replica.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::sleep;

use super::{Redis, until};

/// First and last slot of each primary.
const SLOTS: [(u16, u16); 3] = [(0, 5_460), (5_461, 10_922), (10_923, 16_383)];

/// Six servers. The first three begin as primaries, the others as their replicas.
#[derive(Debug)]
pub struct Clustered {
    servers: Vec<Redis>,
    _folders: Vec<tempfile::TempDir>,
}

impl Clustered {
    /// Starts a cluster that serves every slot.
    pub async fn start() -> Result<Self> {
        let folders = (0..6).map(|_| tempfile::tempdir()).collect::<Result<Vec<_>, _>>()?;
        let server = |folder: &tempfile::TempDir| {
            let bus = crate::nodes::port()?.to_string();
            let mut arguments = vec!["--cluster-enabled", "yes", "--cluster-port", &bus];
            let folder = folder.path().display().to_string();
            arguments.extend(["--dir", &folder, "--cluster-node-timeout", "2000"]);
            arguments.extend(["--cluster-replica-validity-factor", "0"]);
            arguments.extend(["--repl-diskless-sync-delay", "0"]);
            Redis::start_with(&arguments)
        };
        let servers = folders.iter().map(server).collect::<Result<Vec<_>>>()?;
        let cluster = Self { servers, _folders: folders };
        cluster.introduce().await?;
        Ok(cluster)
    }

    async fn introduce(&self) -> Result<()> {
        for (server, (first, last)) in self.servers.iter().zip(SLOTS) {
            server.told(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"))?;
        }
        for (lease_generation, server) in (1..).zip(&self.servers) {
            server.told(&format!("CLUSTER SET-CONFIG-EPOCH {lease_generation}"))?;
        }
        let first = self.servers[0].port;
        let bus = self.servers[0].told("CONFIG GET cluster-port")?;
        let bus = bus.get(1).context("no bus")?;
        for server in &self.servers[1..] {
            server.told(&format!("CLUSTER MEET 127.0.0.1 {first} {bus}"))?;
        }
        self.all_say("cluster_known_nodes:6").await?;
        for (replica, primary) in self.servers[3..].iter().zip(&self.servers) {
            let id = primary.answer("CLUSTER MYID")?;
            // A server that another server has announced may not know its primary yet.
            let replicates = || replica.told(&format!("CLUSTER REPLICATE {id}")).map(|_| true);
            until("the replica knows its primary", replicates).await?;
        }
        self.all_say("cluster_state:ok").await?;
        for replica in &self.servers[3..] {
            let is_up = || Ok(replica.info("replication", "master_link_status")? == "up");
            until("the replica is connected", is_up).await?;
        }
        Ok(())
    }

    async fn all_say(&self, what: &str) -> Result<()> {
        for server in &self.servers {
            until(what, || Ok(server.answer("CLUSTER INFO")?.contains(what))).await?;
        }
        Ok(())
    }

    /// The URL of the cluster, for nodes.
    pub fn url(&self) -> String {
        let seeds: Vec<_> =
            self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("redis+cluster://{}", seeds.join(","))
    }

    /// The slot of all leases.
    pub fn slot_of_leases(&self) -> Result<u16> {
        Ok(self.servers[0].answer("CLUSTER KEYSLOT {nodes}")?.parse()?)
    }

    /// The slots that contain keys now.
    pub fn live_slots(&self) -> Result<Vec<u16>> {
        let mut slots = BTreeSet::new();
        for server in &self.servers[..3] {
            for key in server.told("KEYS rh:*")? {
                slots.insert(server.answer(&format!("CLUSTER KEYSLOT {key}"))?.parse()?);
            }
        }
        Ok(slots.into_iter().collect())
    }

    /// Which of the first three servers has a slot.
    pub fn home_of(&self, slot: u16) -> Result<usize> {
        let keeps = |server: &Redis| -> Result<bool> {
            let nodes = server.answer("CLUSTER NODES")?;
            let own = nodes.lines().find(|line| line.contains("myself")).context("not itself")?;
            Ok(own.split_whitespace().skip(8).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let bounds = (first.parse::<u16>(), last.parse::<u16>());
                matches!(bounds, (Ok(first), Ok(last)) if (first..=last).contains(&slot))
            }))
        };
        for (place, server) in self.servers[..3].iter().enumerate() {
            if keeps(server)? {
                return Ok(place);
            }
        }
        anyhow::bail!("no server has slot {slot}")
    }

    /// Moves a slot as an operator does: key by key, with a pause before each.
    pub async fn move_slot(&self, slot: u16, to: usize, rest: Duration) -> Result<()> {
        let [source, target] = [&self.servers[self.home_of(slot)?], &self.servers[to]];
        let (source_id, target_id) =
            (source.answer("CLUSTER MYID")?, target.answer("CLUSTER MYID")?);
        target.told(&format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"))?;
        source.told(&format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"))?;
        loop {
            sleep(rest).await;
            let keys = source.told(&format!("CLUSTER GETKEYSINSLOT {slot} 1"))?;
            let Some(key) = keys.first() else { break };
            source.told(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", target.port))?;
        }
        for server in [target, source] {
            server.told(&format!("CLUSTER SETSLOT {slot} NODE {target_id}"))?;
        }
        Ok(())
    }

    /// Kills one of the first three servers and waits until its replica is promoted. Waits before that
    /// until the replica knows of every slot that moved: a slot that it does not know would have no
    /// owner afterwards, and a Redis Cluster without an owner for each slot serves none.
    pub async fn fail_over(&self, primary: usize) -> Result<()> {
        let (heir, primary) = (&self.servers[primary + 3], &self.servers[primary]);
        let id = primary.answer("CLUSTER MYID")?;
        let knows = || Ok(slots_of(heir, &id)? == slots_of(primary, &id)?);
        until("the replica knows the slots of its primary", knows).await?;
        primary.kill()?;
        let is_primary = || Ok(heir.info("replication", "role")? == "master");
        until("the replica is promoted", is_primary).await
    }
}

/// The slots of a server, as another one knows them, without those that are being moved.
fn slots_of(viewer: &Redis, id: &str) -> Result<Vec<String>> {
    let nodes = viewer.answer("CLUSTER NODES")?;
    let line = nodes.lines().find(|line| line.starts_with(id)).context("not known")?;
    let slots = line.split_whitespace().skip(8).filter(|range| !range.starts_with('['));
    Ok(slots.map(str::to_owned).collect())
}

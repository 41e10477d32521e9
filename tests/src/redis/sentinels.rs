//! A primary, its replica, and three Sentinels that decide which server is the primary.

use anyhow::{Context, Result};

use super::{Redis, until};

/// A primary that can be lost together with its last writes.
#[derive(Debug)]
pub struct Watched {
    primary: Redis,
    replica: Redis,
    sentinels: Vec<Redis>,
    /// The folder of all files of the servers.
    _folder: tempfile::TempDir,
}

impl Watched {
    /// Starts all five, and waits until the Sentinels have found each other.
    pub async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        // The replica stores the first copy of the data there.
        let dir = folder.path().display().to_string();
        let primary = Redis::start_with(&["--dir", &dir, "--repl-diskless-sync-delay", "0"])?;
        let of = primary.port.to_string();
        let replica = Redis::start_with(&["--dir", &dir, "--replicaof", "127.0.0.1", &of])?;
        let sentinel = |number: i32| {
            let file = folder.path().join(format!("sentinel-{number}.conf"));
            std::fs::write(&file, watching(primary.port))?;
            Redis::start_by_file(&file, &["--sentinel"])
        };
        let sentinels = (0..3).map(sentinel).collect::<Result<Vec<_>>>()?;
        for sentinel in &sentinels {
            let is_complete = || {
                let info = sentinel.answer("INFO sentinel")?;
                Ok(info.contains("status=ok") && info.contains("slaves=1,sentinels=3"))
            };
            until("the Sentinels know each other", is_complete).await?;
        }
        let is_up = || Ok(replica.info("replication", "master_link_status")? == "up");
        until("the replica is connected", is_up).await?;
        Ok(Self { primary, replica, sentinels, _folder: folder })
    }

    /// The URL for nodes.
    pub fn url(&self) -> String {
        let addresses: Vec<_> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/roundhouse", addresses.join(","))
    }

    /// Cuts the replica off from its primary. The Sentinels do not correct that for 10 s.
    pub fn part(&self) -> Result<()> {
        self.replica.told("REPLICAOF 127.0.0.1 1").map(drop)
    }

    /// Kills the primary. Returns how many bytes of replication no other server has.
    pub fn kill_primary(&self) -> Result<u64> {
        let offset = |server: &Redis, name| -> Result<u64> {
            server.info("replication", name)?.parse().context("no offset")
        };
        let held = offset(&self.replica, "slave_repl_offset")?;
        let written = offset(&self.primary, "master_repl_offset")?;
        self.primary.kill()?;
        Ok(written.saturating_sub(held))
    }

    /// Whether the server that was the replica has this key.
    pub fn replica_has(&self, key: &str) -> Result<bool> {
        Ok(self.replica.answer(&format!("EXISTS {key}"))? == "1")
    }

    /// Waits until the replica is promoted.
    pub async fn promoted(&self) -> Result<()> {
        let is_primary = || Ok(self.replica.info("replication", "role")? == "master");
        until("the replica is promoted", is_primary).await
    }
}

/// The configuration of a Sentinel. On a busy machine the first attempt to promote the replica may fail, and the next
/// one is made after twice `failover-timeout`.
fn watching(primary: u16) -> String {
    format!(
        "bind 127.0.0.1\n\
         sentinel monitor roundhouse 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds roundhouse 1000\n\
         sentinel failover-timeout roundhouse 5000\n"
    )
}

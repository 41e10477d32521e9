//! A primary, its replica, and three Sentinels that decide which is which.

use anyhow::{Context, Result};

use super::{Redis, until};

/// A primary that can be lost together with what it wrote last.
#[derive(Debug)]
pub struct Watched {
    primary: Redis,
    replica: Redis,
    sentinels: Vec<Redis>,
    /// Where all keep what they must.
    _folder: tempfile::TempDir,
}

impl Watched {
    /// All five, once they know each other.
    pub async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        // A replica keeps there what it was sent at first.
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
        until("the replica has come", is_up).await?;
        Ok(Self { primary, replica, sentinels, _folder: folder })
    }

    /// Where it is, for nodes.
    pub fn url(&self) -> String {
        let addresses: Vec<_> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/roundhouse", addresses.join(","))
    }

    /// From here on the replica hears nothing. Nobody corrects that for 10 s.
    pub fn part(&self) -> Result<()> {
        self.replica.told("REPLICAOF 127.0.0.1 1").map(drop)
    }

    /// Kills the primary. Answers how many bytes of replication nobody else has.
    pub fn kill_primary(&self) -> Result<u64> {
        let offset = |server: &Redis, name| -> Result<u64> {
            server.info("replication", name)?.parse().context("no offset")
        };
        let held = offset(&self.replica, "slave_repl_offset")?;
        let written = offset(&self.primary, "master_repl_offset")?;
        self.primary.kill()?;
        Ok(written.saturating_sub(held))
    }

    /// Waits until the replica has the primary's place.
    pub async fn promoted(&self) -> Result<()> {
        let is_primary = || Ok(self.replica.info("replication", "role")? == "master");
        until("the replica is promoted", is_primary).await
    }
}

/// What a Sentinel is told.
fn watching(primary: u16) -> String {
    format!(
        "bind 127.0.0.1\n\
         sentinel monitor roundhouse 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds roundhouse 1000\n\
         sentinel failover-timeout roundhouse 10000\n"
    )
}
